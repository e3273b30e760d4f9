#include "tfring_ops/engine/negotiation/messages.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace tfring {
namespace {

// The first byte of a rank's message.
enum class Sent : uint8_t { kRequestList, kProgressUpdate };

// Numbers as they lie in memory, strings and lists behind their length.  All
// ranks run the same build on the same kind of machine.
class Writer {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Put(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_.append(text);
  }
  void Put(const absl::Status& status) {
    Put(status.code());
    Put(std::string(status.message()));
  }
  void Put(const TensorInfo& tensor) {
    Put(tensor.name);
    Put(tensor.dims);
  }
  void Put(const CollectiveRequest& request) {
    Put(request.name);
    Put(request.process_set_id);
    Put(request.kind);
    Put(request.device);
    Put(request.dtype);
    Put(WireType(request));
    Put(request.op);
    Put(request.root_rank);
    Put(request.prescale_factor);
    Put(request.postscale_factor);
    Put(request.tensors);
    Put(request.splits);
    Put(request.chain);
    Put(request.execution);
  }
  void Put(const Response& bucket) {
    Put(bucket.names);
    Put(bucket.sizes);
    Put(bucket.requests);
    Put(bucket.contributors);
    Put(bucket.last_joined);
  }
  void Put(const ErrorResponse& failure) {
    Put(failure.ranks);
    Put(failure.name);
    Put(failure.status);
  }
  void Put(const SilentRank& silent) {
    Put(silent.rank);
    Put(silent.seconds);
  }
  void Put(const StallReport& report) {
    Put(report.ranks);
    Put(report.text);
  }
  void Put(const RequestSizes& sizes) {
    Put(sizes.item);
    Put(sizes.rank);
    Put(sizes.sizes);
  }
  template <typename T>
  void Put(const std::vector<T>& items) {
    Put<uint64_t>(items.size());
    for (const T& item : items) Put(item);
  }

  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Mirrors Writer.  Past the end it reads zeros and remembers the fault.
class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}

  void Expect(Sent expected) {
    Sent said;
    Get(said);
    if (said != expected) faulty_ = true;
  }
  template <typename T>
  void Get(T& value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    value = T{};
    if (!Has(sizeof(value))) return;
    std::memcpy(&value, bytes_.data() + position_, sizeof(value));
    position_ += sizeof(value);
  }
  void Get(std::string& text) {
    uint64_t size = 0;
    Get(size);
    if (!Has(size)) return;
    text = bytes_.substr(position_, size);
    position_ += size;
  }
  void Get(absl::Status& status) {
    absl::StatusCode code;
    std::string message;
    Get(code);
    Get(message);
    status = absl::Status(code, message);
  }
  void Get(TensorInfo& tensor) {
    Get(tensor.name);
    Get(tensor.dims);
  }
  void Get(CollectiveRequest& request) {
    Get(request.name);
    Get(request.process_set_id);
    Get(request.kind);
    if (static_cast<int>(request.kind) >= kCollectiveKindCount) faulty_ = true;
    Get(request.device);
    Get(request.dtype);
    Get(request.wire_dtype.emplace());
    Get(request.op);
    Get(request.root_rank);
    Get(request.prescale_factor);
    Get(request.postscale_factor);
    Get(request.tensors);
    Get(request.splits);
    Get(request.chain);
    Get(request.execution);
  }
  void Get(Response& bucket) {
    Get(bucket.names);
    Get(bucket.sizes);
    Get(bucket.requests);
    Get(bucket.contributors);
    Get(bucket.last_joined);
  }
  void Get(ErrorResponse& failure) {
    Get(failure.ranks);
    Get(failure.name);
    Get(failure.status);
  }
  void Get(SilentRank& silent) {
    Get(silent.rank);
    Get(silent.seconds);
  }
  void Get(StallReport& report) {
    Get(report.ranks);
    Get(report.text);
  }
  void Get(RequestSizes& sizes) {
    Get(sizes.item);
    Get(sizes.rank);
    Get(sizes.sizes);
  }
  template <typename T>
  void Get(std::vector<T>& items) {
    uint64_t size = 0;
    Get(size);
    // An item takes at least a byte, so a corrupt length cannot ask for much.
    if (!Has(size)) return;
    items.resize(size);
    for (T& item : items) Get(item);
  }

  absl::Status Finish() const {
    if (!faulty_ && position_ == bytes_.size()) return absl::OkStatus();
    return absl::InternalError(
        "a message of the agreement cannot be read: do all ranks run the same "
        "version of tfring?");
  }

 private:
  bool Has(uint64_t size) {
    if (size <= bytes_.size() - position_) return true;
    faulty_ = true;
    return false;
  }

  const std::string& bytes_;
  size_t position_ = 0;
  bool faulty_ = false;
};

}  // namespace

std::string Encode(const CollectiveRequest& request) {
  Writer writer;
  writer.Put(request);
  return std::move(writer).Take();
}

void Progress::Add(const Progress& others) {
  count = std::min(count, others.count);
  some_left = some_left || others.some_left;
  all_left = all_left && others.all_left;
}

bool operator==(const Progress& a, const Progress& b) {
  return a.count == b.count && a.some_left == b.some_left &&
         a.all_left == b.all_left;
}

std::string Encode(const RequestList& list) {
  Writer writer;
  writer.Put(Sent::kRequestList);
  writer.Put(list.requests);
  writer.Put(list.shutdown);
  writer.Put(list.schedules);
  return std::move(writer).Take();
}

std::string Encode(const ProgressUpdate& update) {
  Writer writer;
  writer.Put(Sent::kProgressUpdate);
  writer.Put(update.progress.count);
  writer.Put(update.progress.some_left);
  writer.Put(update.progress.all_left);
  writer.Put(update.borders);
  writer.Put(update.sizes);
  return std::move(writer).Take();
}

bool IsRequestList(const std::string& bytes) {
  return !bytes.empty() && bytes[0] == static_cast<char>(Sent::kRequestList);
}

std::string Encode(const Heartbeat& heartbeat) {
  Writer writer;
  writer.Put(heartbeat.silent);
  return std::move(writer).Take();
}

std::string Encode(const ResponseList& response_list) {
  Writer writer;
  writer.Put(response_list.responses);
  writer.Put(response_list.errors);
  writer.Put(response_list.reports);
  writer.Put(response_list.schedule);
  writer.Put(response_list.shutdown);
  return std::move(writer).Take();
}

absl::StatusOr<CollectiveRequest> DecodeRequest(const std::string& bytes) {
  Reader reader(bytes);
  CollectiveRequest request;
  reader.Get(request);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return request;
}

absl::StatusOr<RequestList> DecodeRequestList(const std::string& bytes) {
  Reader reader(bytes);
  RequestList list;
  reader.Expect(Sent::kRequestList);
  reader.Get(list.requests);
  reader.Get(list.shutdown);
  reader.Get(list.schedules);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return list;
}

absl::StatusOr<ProgressUpdate> DecodeProgressUpdate(const std::string& bytes) {
  Reader reader(bytes);
  ProgressUpdate update;
  reader.Expect(Sent::kProgressUpdate);
  reader.Get(update.progress.count);
  reader.Get(update.progress.some_left);
  reader.Get(update.progress.all_left);
  reader.Get(update.borders);
  reader.Get(update.sizes);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return update;
}

absl::StatusOr<Heartbeat> DecodeHeartbeat(const std::string& bytes) {
  Reader reader(bytes);
  Heartbeat heartbeat;
  reader.Get(heartbeat.silent);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return heartbeat;
}

absl::StatusOr<ResponseList> DecodeResponseList(const std::string& bytes) {
  Reader reader(bytes);
  ResponseList response_list;
  reader.Get(response_list.responses);
  reader.Get(response_list.errors);
  reader.Get(response_list.reports);
  reader.Get(response_list.schedule);
  reader.Get(response_list.shutdown);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return response_list;
}

}  // namespace tfring
