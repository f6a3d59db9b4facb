// SPDX-License-Identifier: Apache-2.0
#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace kvik {
namespace {

using std::chrono::microseconds;

TEST(BoundedQueue, KeepsOrderAndCapacity) {
  BoundedQueue<int> queue(2);
  int item = 1;
  EXPECT_TRUE(queue.TryPush(item));
  item = 2;
  EXPECT_TRUE(queue.TryPush(item));
  item = 3;
  EXPECT_FALSE(queue.TryPush(item));
  EXPECT_EQ(item, 3);
  EXPECT_EQ(queue.TryPop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
  EXPECT_EQ(queue.PopFor(microseconds(0)), std::nullopt);
}

TEST(BoundedQueue, MovesItems) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.Push(std::make_unique<int>(5)));
  auto refused = std::make_unique<int>(6);
  EXPECT_FALSE(queue.TryPush(refused));
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(**queue.Pop(), 5);
}

TEST(BoundedQueue, CloseRefusesNewItemsAndDrainsOldOnes) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.Push(1));
  EXPECT_TRUE(queue.Push(2));
  queue.Close();
  queue.Close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.Push(3));
  int item = 4;
  EXPECT_FALSE(queue.TryPush(item));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.PopFor(microseconds(0)), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueue, TakeAllEmptiesInOrder) {
  BoundedQueue<int> queue(4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(queue.Push(i));
  }
  EXPECT_EQ(queue.TakeAll(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_TRUE(queue.TakeAll().empty());
}

TEST(BoundedQueue, CloseWakesAWaitingConsumerAndProducer) {
  BoundedQueue<int> empty(1);
  std::thread consumer([&] { EXPECT_EQ(empty.Pop(), std::nullopt); });
  empty.Close();
  consumer.join();

  BoundedQueue<int> full(1);
  EXPECT_TRUE(full.Push(1));
  std::thread producer([&] { EXPECT_FALSE(full.Push(2)); });
  full.Close();
  producer.join();
  EXPECT_EQ(full.Pop(), 1);
  EXPECT_EQ(full.Pop(), std::nullopt);
}

// Every item pushed by any producer is popped exactly once, and each producer's items stay in
// order, whatever the interleaving.
TEST(BoundedQueue, ManyProducersAndConsumersLoseNothing) {
  constexpr int kThreads = 3;
  constexpr int kItems = 2000;
  BoundedQueue<int> queue(5);
  std::vector<std::thread> producers;
  producers.reserve(kThreads);
  for (int p = 0; p < kThreads; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kItems; ++i) {
        ASSERT_TRUE(queue.Push(p * kItems + i));
      }
    });
  }
  std::vector<std::vector<int>> popped(kThreads);
  std::vector<std::thread> consumers;
  consumers.reserve(kThreads);
  for (int c = 0; c < kThreads; ++c) {
    consumers.emplace_back([&queue, &popped, c] {
      while (std::optional<int> item = queue.Pop()) {
        popped[static_cast<size_t>(c)].push_back(*item);
      }
    });
  }
  for (std::thread& thread : producers) {
    thread.join();
  }
  queue.Close();
  for (std::thread& thread : consumers) {
    thread.join();
  }
  std::vector<int> seen(kThreads * kItems, 0);
  for (const std::vector<int>& items : popped) {
    std::vector<int> last(kThreads, -1);
    for (const int item : items) {
      ++seen[static_cast<size_t>(item)];
      int& previous = last[static_cast<size_t>(item / kItems)];
      EXPECT_LT(previous, item % kItems);
      previous = item % kItems;
    }
  }
  for (const int count : seen) {
    ASSERT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace kvik
