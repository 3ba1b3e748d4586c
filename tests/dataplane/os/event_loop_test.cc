#include "dataplane/os/event_loop.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace vswitch {
namespace {

using testing::ElementsAre;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  void ring() const { EXPECT_EQ(write(write_end.get(), "x", 1), 1); }
  int fd() const { return read_end.get(); }

  UniqueFd read_end;
  UniqueFd write_end;
};

class EventLoopTest : public testing::Test {
 protected:
  std::unique_ptr<EventLoop> loop_ = EventLoop::create().value();
};

TEST_F(EventLoopTest, PostedWorkRunsInOrderOnTheLoopsThread) {
  std::vector<int> order;
  std::thread::id where;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(loop_->post([&, i] {
      order.push_back(i);
      where = std::this_thread::get_id();
    }));
  }
  loop_->post([&] { loop_->stop(); });
  std::thread thread([&] { loop_->run(); });
  const std::thread::id expected = thread.get_id();
  thread.join();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(where, expected);
}

TEST_F(EventLoopTest, EachThreadsPostsKeepTheirOrder) {
  std::vector<int> last(4, -1);
  int done = 0;
  bool in_order = true;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        loop_->post([&, t, i] {
          in_order &= last[t] == i - 1;
          last[t] = i;
          if (i == 1999 && ++done == 4) loop_->stop();
        });
      }
    });
  }
  loop_->run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(in_order);
  EXPECT_THAT(last, ElementsAre(1999, 1999, 1999, 1999));
}

TEST_F(EventLoopTest, WorkPostedByWorkRuns) {
  int depth = 0;
  std::function<void()> again = [&] {
    if (++depth < 10) {
      loop_->post(again);
    } else {
      loop_->stop();
    }
  };
  loop_->post(again);
  loop_->run();
  EXPECT_EQ(depth, 10);
}

TEST_F(EventLoopTest, WorkPostedBeforeStopIsDoneAndLaterWorkIsRefused) {
  bool done = false;
  std::thread other([&] { loop_->stop(); });
  other.join();
  EXPECT_TRUE(loop_->post([&] { done = true; }));
  loop_->run();
  EXPECT_TRUE(done);
  EXPECT_FALSE(loop_->post([&] { FAIL() << "dropped work ran"; }));
}

TEST_F(EventLoopTest, StopFromAnotherThreadWakesASleepingLoop) {
  std::thread thread([&] { loop_->run(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  loop_->stop();
  thread.join();
}

TEST_F(EventLoopTest, DescriptorsWakeTheirCallback) {
  const Pipe pipe;
  std::uint32_t seen = 0;
  ASSERT_TRUE(loop_
                  ->add(pipe.fd(), EPOLLIN,
                        [&](std::uint32_t events) {
                          seen = events;
                          loop_->stop();
                        })
                  .ok());
  pipe.ring();
  loop_->run();
  EXPECT_EQ(seen, static_cast<std::uint32_t>(EPOLLIN));
}

TEST_F(EventLoopTest, DescriptorsThatCannotBeWatched) {
  const Pipe pipe;
  EXPECT_FALSE(loop_->add(-1, EPOLLIN, [](std::uint32_t) {}).ok());
  EXPECT_TRUE(loop_->add(pipe.fd(), EPOLLIN, [](std::uint32_t) {}).ok());
  EXPECT_FALSE(loop_->add(pipe.fd(), EPOLLIN, [](std::uint32_t) {}).ok());
  EXPECT_FALSE(loop_->modify(pipe.write_end.get(), EPOLLIN).ok());
  loop_->remove(pipe.fd());
  loop_->remove(pipe.fd());  // once more does nothing
}

TEST_F(EventLoopTest, ModifyChangesWhatIsWatched) {
  const Pipe pipe;
  int calls = 0;
  ASSERT_TRUE(loop_
                  ->add(pipe.fd(), 0,
                        [&](std::uint32_t) {
                          ++calls;
                          loop_->stop();
                        })
                  .ok());
  pipe.ring();
  loop_->post([&] {
    EXPECT_EQ(calls, 0);
    EXPECT_TRUE(loop_->modify(pipe.fd(), EPOLLIN).ok());
  });
  loop_->run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, CallbackThatRemovesItself) {
  const Pipe pipe;
  int calls = 0;
  // What the callback holds must live until it returns.
  auto held = std::make_shared<int>(42);
  ASSERT_TRUE(loop_
                  ->add(pipe.fd(), EPOLLIN,
                        [this, &calls, &pipe, held](std::uint32_t) {
                          ++calls;
                          loop_->remove(pipe.fd());
                          EXPECT_EQ(*held, 42);
                          loop_->post([this] { loop_->stop(); });
                        })
                  .ok());
  pipe.ring();  // stays readable: level-triggered
  loop_->run();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(held.use_count(), 1);  // gone with its watch
}

TEST_F(EventLoopTest, CallbackThatRemovesAnotherOfTheSameRound) {
  const Pipe first;
  const Pipe second;
  int calls = 0;
  const auto remove = [&](int other) {
    return [&, other](std::uint32_t) {
      ++calls;
      loop_->remove(other);
      loop_->stop();
    };
  };
  ASSERT_TRUE(loop_->add(first.fd(), EPOLLIN, remove(second.fd())).ok());
  ASSERT_TRUE(loop_->add(second.fd(), EPOLLIN, remove(first.fd())).ok());
  first.ring();
  second.ring();
  loop_->run();
  EXPECT_EQ(calls, 1);
}

// A descriptor's number is used again at once after it was closed: an event of the old one that
// was collected in the same round is not for the new one.
TEST_F(EventLoopTest, EventOfAClosedDescriptorDoesNotReachItsSuccessor) {
  const Pipe first;
  Pipe second;
  const Pipe silent;
  const int number = second.fd();
  int stray = 0;
  ASSERT_TRUE(loop_
                  ->add(first.fd(), EPOLLIN,
                        [&](std::uint32_t) {
                          loop_->remove(first.fd());
                          loop_->remove(number);
                          second.read_end.reset();
                          ASSERT_EQ(fcntl(silent.fd(), F_DUPFD_CLOEXEC, number), number);
                          ASSERT_TRUE(
                              loop_->add(number, EPOLLIN, [&](std::uint32_t) { ++stray; }).ok());
                          loop_->post([&] { loop_->stop(); });
                        })
                  .ok());
  ASSERT_TRUE(loop_->add(number, EPOLLIN, [](std::uint32_t) {}).ok());
  first.ring();
  second.ring();
  loop_->run();
  EXPECT_EQ(stray, 0);
  loop_->remove(number);
  close(number);
}

TEST_F(EventLoopTest, HookRunsEveryRoundAndSaysHowLongToSleep) {
  int rounds = 0;
  loop_->after_round([&]() -> std::int64_t {
    if (++rounds == 5) loop_->stop();
    return rounds < 3 ? 0 : 2000;
  });
  loop_->post([] {});
  const auto start = std::chrono::steady_clock::now();
  loop_->run();
  EXPECT_EQ(rounds, 5);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::microseconds(4000));
}

TEST_F(EventLoopTest, TicksOnceASecond) {
  const auto start = std::chrono::steady_clock::now();
  loop_->every_second([&] { loop_->stop(); });
  loop_->run();
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(elapsed, std::chrono::milliseconds(990));
  EXPECT_LT(elapsed, std::chrono::seconds(10));
}

}  // namespace
}  // namespace vswitch
