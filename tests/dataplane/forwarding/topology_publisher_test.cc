// Continuations run after every worker has let go, and never before.
#include "dataplane/forwarding/topology_publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rte_rcu_qsbr.h>

#include <string>
#include <thread>

namespace vswitch::forwarding {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PublisherTest : public testing::Test {
 protected:
  PublisherTest() {
    auto created = Published::create();
    EXPECT_TRUE(created.ok()) << created.status();
    published = *std::move(created);
    publisher = std::make_unique<TopologyPublisher>(*published, [this] {
      ++built;
      auto topology = std::make_unique<Topology>();
      topology->outputs.resize(static_cast<std::size_t>(built));  // tells snapshots apart
      return topology;
    });
  }
  void add_worker(unsigned index) {
    rte_rcu_qsbr_thread_register(published->quiescence(), index);
    rte_rcu_qsbr_thread_online(published->quiescence(), index);
  }
  void quiescent(unsigned index) { rte_rcu_qsbr_quiescent(published->quiescence(), index); }
  std::size_t current() const { return published->topology()->outputs.size(); }
  TopologyPublisher::Released note(const std::string& what) {
    return [this, what] { log.push_back(what); };
  }

  int built = 0;
  std::vector<std::string> log;
  std::unique_ptr<Published> published;
  std::unique_ptr<TopologyPublisher> publisher;
};

TEST_F(PublisherTest, StartsWithASnapshot) {
  EXPECT_EQ(current(), 1u);
  EXPECT_LT(publisher->advance(), 0) << "nothing is under way";
  EXPECT_EQ(built, 1);
}

TEST_F(PublisherTest, WaitsForEveryWorker) {
  add_worker(0);
  add_worker(1);
  publisher->request(note("done"));
  EXPECT_THAT(log, IsEmpty()) << "never from within request()";
  EXPECT_EQ(current(), 1u);
  EXPECT_GE(publisher->advance(), 0) << "the loop must come back";
  EXPECT_EQ(current(), 2u);
  EXPECT_THAT(log, IsEmpty());
  quiescent(0);
  publisher->advance();
  EXPECT_THAT(log, IsEmpty()) << "worker 1 may still use the old snapshot";
  quiescent(0);
  publisher->advance();
  EXPECT_THAT(log, IsEmpty());
  quiescent(1);
  EXPECT_LT(publisher->advance(), 0);
  EXPECT_THAT(log, ElementsAre("done"));
}

TEST_F(PublisherTest, WithoutWorkersNobodyIsWaitedFor) {
  publisher->request(note("done"));
  EXPECT_LT(publisher->advance(), 0);
  EXPECT_THAT(log, ElementsAre("done"));
}

TEST_F(PublisherTest, AWorkerThatLeftIsNotWaitedFor) {
  add_worker(0);
  publisher->request(note("done"));
  publisher->advance();
  EXPECT_THAT(log, IsEmpty());
  rte_rcu_qsbr_thread_offline(published->quiescence(), 0);
  rte_rcu_qsbr_thread_unregister(published->quiescence(), 0);
  publisher->advance();
  EXPECT_THAT(log, ElementsAre("done"));
}

TEST_F(PublisherTest, RequestsOfOneRoundShareASnapshot) {
  add_worker(0);
  publisher->request(note("a"));
  publisher->request();
  publisher->request(note("b"));
  publisher->advance();
  EXPECT_EQ(built, 2);
  quiescent(0);
  publisher->advance();
  EXPECT_THAT(log, ElementsAre("a", "b"));
  EXPECT_EQ(built, 2);
}

TEST_F(PublisherTest, ALaterRequestNeedsItsOwnGracePeriod) {
  add_worker(0);
  publisher->request(note("a"));
  publisher->advance();
  quiescent(0);
  publisher->request(note("b"));
  publisher->advance();
  EXPECT_EQ(built, 3);
  EXPECT_THAT(log, ElementsAre("a")) << "the quiescent point was before b's snapshot";
  quiescent(0);
  publisher->advance();
  EXPECT_THAT(log, ElementsAre("a", "b"));
}

TEST_F(PublisherTest, AContinuationMayAskAgain) {
  add_worker(0);
  publisher->request([this] {
    log.push_back("a");
    publisher->request([this] {
      log.push_back("b");
      publisher->request(note("c"));
    });
  });
  publisher->advance();
  quiescent(0);
  publisher->advance();
  EXPECT_THAT(log, ElementsAre("a"));
  EXPECT_EQ(built, 3) << "published in the same round";
  quiescent(0);
  publisher->advance();
  EXPECT_THAT(log, ElementsAre("a", "b"));
  quiescent(0);
  EXPECT_LT(publisher->advance(), 0);
  EXPECT_THAT(log, ElementsAre("a", "b", "c"));
}

// One that always asks again must not keep the loop from its other work.
TEST_F(PublisherTest, AnEndlessChainDoesNotCaptureTheLoop) {
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    publisher->request(again);
  };
  publisher->request(again);
  EXPECT_EQ(publisher->advance(), 0);
  EXPECT_GT(runs, 0);
  EXPECT_LT(runs, 100);
}

TEST_F(PublisherTest, ASleepyWorkerDoesNotMakeTheLoopSpin) {
  add_worker(0);
  publisher->request(note("done"));
  std::int64_t sleep = 0;
  for (int round = 0; round < 1000 && sleep == 0; ++round) sleep = publisher->advance();
  EXPECT_GT(sleep, 0);
  EXPECT_LE(sleep, 1000) << "a tick of the loop, not a nap";
}

// A thread that reads snapshots as a worker does; what a continuation destroys must be out of use.
TEST_F(PublisherTest, NothingInUseIsReleased) {
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> rounds{0};
  std::thread worker([&] {
    add_worker(3);
    while (!stop.load()) {
      const Topology* topology = published->topology();
      const std::size_t size = topology->outputs.size();
      for (const Topology::Output& output : topology->outputs) {
        if (output.generation != 0) ADD_FAILURE() << "a snapshot that was changed in place";
      }
      if (topology->outputs.size() != size) ADD_FAILURE();
      rounds.fetch_add(1);
      quiescent(3);
    }
    rte_rcu_qsbr_thread_offline(published->quiescence(), 3);
    rte_rcu_qsbr_thread_unregister(published->quiescence(), 3);
  });
  while (rounds.load() == 0) std::this_thread::yield();
  int released = 0;
  for (int i = 0; i < 100; ++i) {
    publisher->request([&] { ++released; });
    while (publisher->advance() >= 0) std::this_thread::yield();
  }
  EXPECT_EQ(released, 100);
  stop = true;
  worker.join();
}

}  // namespace
}  // namespace vswitch::forwarding
