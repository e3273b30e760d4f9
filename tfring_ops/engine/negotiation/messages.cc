#include "tfring_ops/engine/negotiation/messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tfring {
namespace {

// The first byte of a rank's message.
enum class Sent : uint8_t { kRequestList, kProgressUpdate };

// The fields of each message, in their order on the wire.
template <typename Message>
constexpr auto kFields = nullptr;  // of a type that is no message
template <>
constexpr auto kFields<TensorInfo> =
    std::tuple(&TensorInfo::name, &TensorInfo::dims);
template <>
constexpr auto kFields<CollectiveRequest> = std::tuple(
    &CollectiveRequest::name, &CollectiveRequest::is_nameless,
    &CollectiveRequest::process_set_id, &CollectiveRequest::kind,
    &CollectiveRequest::device, &CollectiveRequest::dtype,
    &CollectiveRequest::wire_dtype, &CollectiveRequest::op,
    &CollectiveRequest::root_rank, &CollectiveRequest::prescale_factor,
    &CollectiveRequest::postscale_factor, &CollectiveRequest::tensors,
    &CollectiveRequest::splits, &CollectiveRequest::chain,
    &CollectiveRequest::execution);
template <>
constexpr auto kFields<RequestList> = std::tuple(
    &RequestList::requests, &RequestList::shutdown, &RequestList::schedules);
template <>
constexpr auto kFields<Progress> =
    std::tuple(&Progress::count, &Progress::some_left, &Progress::all_left);
template <>
constexpr auto kFields<RequestSizes> =
    std::tuple(&RequestSizes::item, &RequestSizes::rank, &RequestSizes::sizes);
template <>
constexpr auto kFields<ProgressUpdate> =
    std::tuple(&ProgressUpdate::progress, &ProgressUpdate::borders,
               &ProgressUpdate::sizes);
template <>
constexpr auto kFields<SilentRank> =
    std::tuple(&SilentRank::rank, &SilentRank::seconds);
template <>
constexpr auto kFields<Heartbeat> = std::tuple(&Heartbeat::silent);
template <>
constexpr auto kFields<Response> =
    std::tuple(&Response::names, &Response::sizes, &Response::requests,
               &Response::contributors, &Response::last_joined);
template <>
constexpr auto kFields<ErrorResponse> = std::tuple(
    &ErrorResponse::ranks, &ErrorResponse::name, &ErrorResponse::status);
template <>
constexpr auto kFields<StallReport> =
    std::tuple(&StallReport::ranks, &StallReport::text);
template <>
constexpr auto kFields<ResponseList> = std::tuple(
    &ResponseList::responses, &ResponseList::errors, &ResponseList::reports,
    &ResponseList::schedule, &ResponseList::shutdown);

template <typename T>
constexpr bool kIsFloat = std::is_floating_point_v<T>;
template <typename T>
constexpr bool kIsInteger = std::is_integral_v<T> || std::is_enum_v<T>;

// Integers travel in groups of 7 bits, the lowest first; the high bit of a byte
// says that another one follows.  Most are small, and the coordinator of 1,024
// ranks reads megabytes of them.  Other numbers travel as they lie in memory:
// all ranks run the same build on the same kind of machine.  Strings and lists
// follow their length.
class Writer {
 public:
  template <typename T>
  void Put(const T& value) {
    if constexpr (kIsInteger<T>) {
      // Small negative numbers are small, too ("zigzag").
      const auto number = static_cast<int64_t>(value);
      auto rest = (static_cast<uint64_t>(number) << 1) ^
                  static_cast<uint64_t>(number >> 63);
      for (; rest >= 0x80; rest >>= 7) {
        bytes_.push_back(static_cast<char>(rest | 0x80));
      }
      bytes_.push_back(static_cast<char>(rest));
    } else if constexpr (kIsFloat<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else {
      std::apply([&](auto... fields) { (PutField(value, fields), ...); },
                 kFields<T>);
    }
  }
  void Put(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_.append(text);
  }
  void Put(const absl::Status& status) {
    Put(status.code());
    Put(std::string(status.message()));
  }
  template <typename T>
  void Put(const std::vector<T>& items) {
    Put<uint64_t>(items.size());
    for (const T& item : items) Put(item);
  }

  std::string Take() && { return std::move(bytes_); }

 private:
  template <typename Message, typename Field>
  void PutField(const Message& message, Field Message::* field) {
    Put(message.*field);
  }
  void PutField(const CollectiveRequest& request,
                std::optional<DataType> CollectiveRequest::* /*wire_dtype*/) {
    Put(WireType(request));
  }

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
    if constexpr (kIsInteger<T>) {
      value = static_cast<T>(GetInteger());
    } else if constexpr (kIsFloat<T>) {
      value = 0;
      if (!Has(sizeof(value))) return;
      std::memcpy(&value, bytes_.data() + position_, sizeof(value));
      position_ += sizeof(value);
    } else {
      std::apply([&](auto... fields) { (Get(value.*fields), ...); },
                 kFields<T>);
    }
  }
  void Get(CollectiveKind& kind) {
    const int64_t number = GetInteger();
    if (number < 0 || number >= kCollectiveKindCount) faulty_ = true;
    kind = static_cast<CollectiveKind>(number);
  }
  void Get(std::optional<DataType>& dtype) { Get(dtype.emplace()); }
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
  template <typename T>
  void Get(std::vector<T>& items) {
    uint64_t size = 0;
    Get(size);
    // An item takes at least a byte, so a corrupt length cannot ask for much.
    if (!Has(size)) return;
    items.resize(size);
    for (T& item : items) Get(item);
  }

  // Returns true if `expected` comes next, and skips it.
  bool Skip(const std::string& expected) {
    if (bytes_.compare(position_, expected.size(), expected) != 0) return false;
    position_ += expected.size();
    return true;
  }

  size_t position() const { return position_; }
  bool faulty() const { return faulty_; }

  absl::Status Finish() const {
    if (!faulty_ && position_ == bytes_.size()) return absl::OkStatus();
    return absl::InternalError(
        "a message of the agreement cannot be read: do all ranks run the same "
        "version of tfring?");
  }

 private:
  int64_t GetInteger() {
    uint64_t number = 0;
    for (int shift = 0; shift < 64 && Has(1); shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_[position_++]);
      number |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) {
        return static_cast<int64_t>((number >> 1) ^ (~(number & 1) + 1));
      }
    }
    faulty_ = true;
    return 0;
  }

  bool Has(uint64_t size) {
    if (size <= bytes_.size() - position_) return true;
    faulty_ = true;
    return false;
  }

  const std::string& bytes_;
  size_t position_ = 0;
  bool faulty_ = false;
};

// `sent`: the message's first byte, if it has one.
template <typename Message, typename... FirstByte>
std::string EncodeMessage(const Message& message, FirstByte... sent) {
  Writer writer;
  (writer.Put(sent), ...);
  writer.Put(message);
  return std::move(writer).Take();
}

template <typename Message, typename... FirstByte>
absl::StatusOr<Message> Decode(const std::string& bytes, FirstByte... sent) {
  Reader reader(bytes);
  (reader.Expect(sent), ...);
  Message message;
  reader.Get(message);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return message;
}

}  // namespace

void Progress::Add(const Progress& others) {
  count = std::min(count, others.count);
  some_left = some_left || others.some_left;
  all_left = all_left && others.all_left;
}

bool operator==(const Progress& a, const Progress& b) {
  return a.count == b.count && a.some_left == b.some_left &&
         a.all_left == b.all_left;
}

std::string Encode(const CollectiveRequest& request) {
  return EncodeMessage(request);
}
std::string Encode(const RequestList& list) {
  return EncodeMessage(list, Sent::kRequestList);
}
std::string Encode(const ProgressUpdate& update) {
  return EncodeMessage(update, Sent::kProgressUpdate);
}
std::string Encode(const Heartbeat& heartbeat) {
  return EncodeMessage(heartbeat);
}
std::string Encode(const ResponseList& response_list) {
  return EncodeMessage(response_list);
}

bool IsRequestList(const std::string& bytes) {
  return !bytes.empty() && bytes[0] == static_cast<char>(Sent::kRequestList);
}

absl::StatusOr<CollectiveRequest> DecodeRequest(const std::string& bytes) {
  return Decode<CollectiveRequest>(bytes);
}
absl::StatusOr<ProgressUpdate> DecodeProgressUpdate(const std::string& bytes) {
  return Decode<ProgressUpdate>(bytes, Sent::kProgressUpdate);
}
absl::StatusOr<Heartbeat> DecodeHeartbeat(const std::string& bytes) {
  return Decode<Heartbeat>(bytes);
}
absl::StatusOr<ResponseList> DecodeResponseList(const std::string& bytes) {
  return Decode<ResponseList>(bytes);
}

absl::StatusOr<RequestListDecoder::List> RequestListDecoder::Decode(
    const std::vector<int>& ranks, const std::string& bytes) {
  if (order_.size() >= kMostKnown) {
    order_.clear();
    places_.clear();
    next_.assign(next_.size(), 0);
  }
  Reader reader(bytes);
  reader.Expect(Sent::kRequestList);
  List list;
  uint64_t count = 0;
  reader.Get(count);
  // A request takes more than a byte.
  list.requests.reserve(std::min<uint64_t>(count, bytes.size()));
  size_t next = next_[ranks.front()];
  nameless_.clear();
  for (; count > 0; --count) {
    if (next == order_.size() || !reader.Skip(order_[next]->first)) {
      const size_t begin = reader.position();
      Place place{order_.size(), {}};
      reader.Get(place.known.request);
      if (reader.faulty()) break;
      if (place.known.request.is_nameless) {
        list.requests.push_back(
            &nameless_.emplace_back(std::move(place.known)));
        continue;
      }
      const auto [known, is_new] = places_.try_emplace(
          bytes.substr(begin, reader.position() - begin), std::move(place));
      if (is_new) order_.push_back(&*known);
      next = known->second.index;
    }
    list.requests.push_back(&order_[next++]->second.known);
  }
  reader.Get(list.shutdown);
  reader.Get(list.schedules);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  for (const int rank : ranks) next_[rank] = next;
  return list;
}

}  // namespace tfring
