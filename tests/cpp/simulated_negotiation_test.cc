// The negotiation of 512 ranks, in simulated time.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpp/simulated_job.h"
#include "tests/cpp/simulated_negotiator.h"
#include "tfring_ops/base/options.h"
#include "tfring_ops/engine/members.h"

namespace tfring {
namespace {

using ::testing::HasSubstr;
using Names = std::vector<std::string>;

constexpr int kGradients = 20;

Names Gradients() {
  Names names;
  for (int i = 0; i < kGradients; ++i) {
    names.push_back("gradient " + std::to_string(i));
  }
  return names;
}

class SimulatedNegotiationTest : public testing::Test {
 protected:
  static constexpr int kNodes = 64, kRanksPerNode = 8;
  static constexpr int kSize = kNodes * kRanksPerNode;

  // Each rank submits the requests of make(rank), and waits until `count` of
  // this step's are decided.  Returns the simulated seconds.
  template <typename Make>
  double Step(size_t count, const Make& make) {
    decided_.assign(kSize, {});
    errors_.assign(kSize, {});
    const absl::StatusOr<double> seconds = job_.Run([&](Transport& transport) {
      const int rank = transport.rank();
      auto& negotiator = negotiators_[rank];
      if (negotiator == nullptr) {
        negotiator = std::make_unique<SimulatedNegotiator>(options_, members_,
                                                           transport, job_);
      }
      return negotiator->Run(
          make(rank), /*shutdown=*/false, [&](const ResponseList& list) {
            Note(list, rank);
            return decided_[rank].size() + errors_[rank].size() >= count;
          });
    });
    EXPECT_TRUE(seconds.ok()) << seconds.status();
    return seconds.value_or(0);
  }

  void Note(const ResponseList& list, int rank) {
    for (const Response& response : list.responses) {
      decided_[rank].insert(decided_[rank].end(), response.names.begin(),
                            response.names.end());
    }
    for (const ErrorResponse& error : list.errors) {
      errors_[rank].push_back(error);
    }
  }

  static std::vector<CollectiveRequest> Requests(const Names& names) {
    std::vector<CollectiveRequest> requests;
    for (const std::string& name : names) {
      CollectiveRequest& request = requests.emplace_back();
      request.name = name;
      request.tensors = {{name, {1000}}};
    }
    return requests;
  }

  void ExpectDecidedOnAllRanks(const Names& names) const {
    for (int rank = 0; rank < kSize; ++rank) {
      ASSERT_EQ(decided_[rank], names) << "rank " << rank;
    }
  }

  SimulatedJob job_{[] {
    SimulatedNetwork network;
    network.nodes = kNodes;
    network.ranks_per_node = kRanksPerNode;
    network.handling_seconds = 1e-6;
    return network;
  }()};
  const Options options_;
  const Members members_{kSize};
  std::vector<std::unique_ptr<SimulatedNegotiator>> negotiators_{kSize};
  // What each rank was told in the last step.
  std::vector<Names> decided_{kSize};
  std::vector<std::vector<ErrorResponse>> errors_{kSize};
};

TEST_F(SimulatedNegotiationTest, EqualStepsAreSoonAgreedWithoutTheCoordinator) {
  const auto step = [&] {
    return Step(kGradients, [](int) { return Requests(Gradients()); });
  };
  const double first = step();
  ExpectDecidedOnAllRanks(Gradients());
  step();
  ExpectDecidedOnAllRanks(Gradients());
  const double repeated = step();
  ExpectDecidedOnAllRanks(Gradients());
  // In the first step the coordinator receives and sends a message for each
  // rank.  In a repeated one the ranks' progress crosses the network a few
  // times.
  EXPECT_GT(first, 2 * kSize * 1e-6);
  EXPECT_LT(repeated, 10 * 20e-6 + 100e-6);
}

TEST_F(SimulatedNegotiationTest, ARankMayHaveAnotherOrderOrOneGradientMore) {
  Step(kGradients, [](int rank) {
    Names names = Gradients();
    if (rank == 77) names.insert(names.begin() + 3, "one more");
    if (rank == 200) std::swap(names[4], names[9]);
    return Requests(names);
  });
  // The order depends on which rank is the last to ask for a gradient.
  Names expected = decided_[0];
  std::sort(expected.begin(), expected.end());
  Names sorted = Gradients();
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(expected, sorted);
  ExpectDecidedOnAllRanks(Names(decided_[0]));

  Step(1, [](int rank) {
    return Requests(rank == 77 ? Names{} : Names{"one more"});
  });
  ExpectDecidedOnAllRanks({"one more"});
}

TEST_F(SimulatedNegotiationTest, AnotherShapeFailsOnAllRanksAndIsNamed) {
  for (const bool differs : {true, false}) {
    Step(kGradients, [&](int rank) {
      std::vector<CollectiveRequest> requests = Requests(Gradients());
      if (differs && rank == 300) requests[7].tensors[0].dims = {999};
      return requests;
    });
    for (int rank = 0; rank < kSize; ++rank) {
      ASSERT_EQ(decided_[rank], decided_[0]);
      ASSERT_EQ(errors_[rank].size(), differs ? 1u : 0u);
      if (!differs) continue;
      EXPECT_EQ(errors_[rank][0].name, "gradient 7");
      EXPECT_EQ(errors_[rank][0].ranks.size(), static_cast<size_t>(kSize));
      ASSERT_THAT(errors_[rank][0].status.message(),
                  HasSubstr("Rank 0 sent float32 (1000,); rank 300 sent "
                            "float32 (999,)"));
    }
  }
  ExpectDecidedOnAllRanks(Gradients());
}

TEST_F(SimulatedNegotiationTest, AShutdownEndsARepeatedStepOnAllRanks) {
  for (int step = 0; step < 3; ++step) {
    Step(kGradients, [](int) { return Requests(Gradients()); });
  }
  std::vector<absl::Status> ends(kSize);
  const absl::StatusOr<double> seconds = job_.Run([&](Transport& transport) {
    const int rank = transport.rank();
    const absl::Status status = negotiators_[rank]->Run(
        rank == 5 ? std::vector<CollectiveRequest>{} : Requests(Gradients()),
        /*shutdown=*/rank == 5, [&](const ResponseList& list) {
          ends[rank] = list.shutdown;
          return !list.shutdown.ok();
        });
    return status.ok() ? negotiators_[rank]->End() : status;
  });
  EXPECT_TRUE(seconds.ok()) << seconds.status();
  for (const absl::Status& end : ends) {
    ASSERT_THAT(end.message(), HasSubstr("rank 5 has shut down"));
  }
}

}  // namespace
}  // namespace tfring
