#include "tfring_ops/offload/copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfring {
namespace {

// A piece is large enough that its overhead does not count, and small enough
// that a feature map of some MiB occupies all threads.
constexpr int64_t kPieceBytes = 2 << 20;

// A few cores use the whole bandwidth of the memory; the others compute.
constexpr int kThreads = 2;

}  // namespace

struct Copier::Copy {
  const char* from;
  char* to;
  int64_t bytes;
  Done done;
  int64_t begun_bytes = 0;
  int64_t pieces_in_flight = 0;
};

Copier::Copier(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

Copier::~Copier() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Copier& Copier::Global() {
  static Copier& copier = *new Copier(kThreads);
  return copier;
}

void Copier::Submit(Direction direction, const char* from, char* to,
                    int64_t bytes, Done done) {
  auto copy = std::make_shared<Copy>(Copy{from, to, bytes, std::move(done)});
  {
    std::lock_guard<std::mutex> lock(mutex_);
    (direction == Direction::kOut ? out_ : back_).push_back(std::move(copy));
  }
  changed_.notify_all();
}

std::shared_ptr<Copier::Copy> Copier::Next(int64_t* offset) {
  for (std::deque<std::shared_ptr<Copy>>* queue : {&back_, &out_}) {
    if (queue->empty()) continue;
    std::shared_ptr<Copy> copy = queue->front();
    *offset = copy->begun_bytes;
    copy->begun_bytes += kPieceBytes;
    ++copy->pieces_in_flight;
    if (copy->begun_bytes >= copy->bytes) queue->pop_front();
    return copy;
  }
  return nullptr;
}

void Copier::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    int64_t offset = 0;
    if (std::shared_ptr<Copy> copy = Next(&offset)) {
      lock.unlock();
      RunPiece(copy, offset);
      lock.lock();
    } else if (ending_) {
      return;
    } else {
      changed_.wait(lock);
    }
  }
}

void Copier::RunPiece(const std::shared_ptr<Copy>& copy, int64_t offset) {
  std::memcpy(copy->to + offset, copy->from + offset,
              std::min(kPieceBytes, copy->bytes - offset));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--copy->pieces_in_flight > 0 || copy->begun_bytes < copy->bytes) {
      return;
    }
  }
  copy->done(absl::OkStatus());
}

}  // namespace tfring
