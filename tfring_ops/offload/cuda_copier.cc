#include "tfring_ops/offload/cuda_copier.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "tfring_ops/base/status_macros.h"
#include "tfring_ops/kernels/cuda.h"

namespace tfring {

// The copies of one direction, which end in the order in which they begin.
class CudaCopier::Lane {
 public:
  static absl::StatusOr<std::unique_ptr<Lane>> Create(
      int ordinal, Copier::Direction direction) {
    TFRING_ASSIGN_OR_RETURN(std::unique_ptr<CudaCopyStream> stream,
                            CudaCopyStream::CreateOn(ordinal));
    return std::unique_ptr<Lane>(
        new Lane(ordinal, direction, std::move(stream)));
  }

  ~Lane() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Submit(void* framework_stream, char* device, char* pinned, int64_t bytes,
              Copier::Done done) {
    absl::Status status;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      status = Enqueue(framework_stream, device, pinned, bytes, done);
    }
    if (status.ok()) {
      changed_.notify_all();
    } else {
      done(status);
    }
  }

 private:
  struct Copy {
    std::unique_ptr<CudaEvent> ended;
    Copier::Done done;
  };

  Lane(int ordinal, Copier::Direction direction,
       std::unique_ptr<CudaCopyStream> stream)
      : ordinal_(ordinal),
        direction_(direction),
        stream_(std::move(stream)),
        thread_([this] { Run(); }) {}

  // See Note [What copies wait for on a GPU], 1.  After a copy is enqueued,
  // only the whole context can fail; it then does nothing more.  Takes `done`
  // if it returns OK.
  // REQUIRES: mutex_ is held.
  absl::Status Enqueue(void* framework_stream, char* device, char* pinned,
                       int64_t bytes, Copier::Done& done) {
    Copy copy;
    TFRING_ASSIGN_OR_RETURN(const auto ready, CudaEvent::CreateOn(ordinal_));
    TFRING_ASSIGN_OR_RETURN(copy.ended, CudaEvent::CreateOn(ordinal_));
    TFRING_RETURN_IF_ERROR(ready->Record(framework_stream));
    TFRING_RETURN_IF_ERROR(ready->Await(stream_->stream()));
    if (direction_ == Copier::Direction::kOut) {
      TFRING_RETURN_IF_ERROR(stream_->Download(pinned, device, bytes));
    } else {
      TFRING_RETURN_IF_ERROR(stream_->Upload(device, pinned, bytes));
    }
    TFRING_RETURN_IF_ERROR(copy.ended->Record(stream_->stream()));
    copy.done = std::move(done);
    copies_.push_back(std::move(copy));
    return absl::OkStatus();
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !copies_.empty() || ending_; });
      if (copies_.empty()) return;
      Copy copy = std::move(copies_.front());
      copies_.pop_front();
      lock.unlock();
      // See Note [What copies wait for on a GPU], 2.
      copy.done(copy.ended->Wait());
      lock.lock();
    }
  }

  const int ordinal_;
  const Copier::Direction direction_;
  const std::unique_ptr<CudaCopyStream> stream_;
  std::mutex mutex_;  // guards the members below, and the order on the stream
  std::condition_variable changed_;
  std::deque<Copy> copies_;
  bool ending_ = false;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<CudaCopier>> CudaCopier::Create(int ordinal) {
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Lane> out,
                          Lane::Create(ordinal, Copier::Direction::kOut));
  TFRING_ASSIGN_OR_RETURN(std::unique_ptr<Lane> back,
                          Lane::Create(ordinal, Copier::Direction::kBack));
  return std::unique_ptr<CudaCopier>(
      new CudaCopier(std::move(out), std::move(back)));
}

absl::StatusOr<CudaCopier*> CudaCopier::Find(int ordinal) {
  static std::mutex& mutex = *new std::mutex();
  static auto& copiers = *new std::map<int, std::unique_ptr<CudaCopier>>();
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<CudaCopier>& copier = copiers[ordinal];
  if (copier == nullptr) {
    TFRING_ASSIGN_OR_RETURN(copier, Create(ordinal));
  }
  return copier.get();
}

CudaCopier::CudaCopier(std::unique_ptr<Lane> out, std::unique_ptr<Lane> back)
    : out_(std::move(out)), back_(std::move(back)) {}

CudaCopier::~CudaCopier() = default;

void CudaCopier::Submit(Copier::Direction direction, void* stream, char* device,
                        char* pinned, int64_t bytes, Copier::Done done) {
  Lane& lane = direction == Copier::Direction::kOut ? *out_ : *back_;
  lane.Submit(stream, device, pinned, bytes, std::move(done));
}

}  // namespace tfring
