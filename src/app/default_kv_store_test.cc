// SPDX-License-Identifier: Apache-2.0
#include "app/default_kv_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "store/file_system.h"

namespace kvik::app {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

class DefaultKvStoreTest : public testing::Test {
 protected:
  DefaultKvStoreTest() {
    std::string path = testing::TempDir() + "kv-store-XXXXXX";
    folder_ = mkdtemp(path.data());
    options_ = {.root = folder_ + "/cache/kv-store",
                .model_path = "/models/tiny.gguf",
                .weights = "w",
                .chunk_bytes = kMiB,
                .spare_bytes = 2 * kGiB};
  }
  ~DefaultKvStoreTest() override { fs::remove_all(folder_); }

  std::unique_ptr<store::Store> Open() { return OpenDefaultKvStore(options_, clock_, nullptr); }
  static size_t Tiers(const std::unique_ptr<store::Store>& store) {
    return store == nullptr ? 0 : store->stats().tiers.size();
  }

  std::string folder_;
  const SystemClock clock_;
  DefaultKvStoreOptions options_;
};

TEST(DefaultKvStoreBudgetTest, MemoryIsAShareOfWhatIsSpare) {
  EXPECT_EQ(DefaultStoreMemoryBytes(4 * kGiB, kMiB), 512 * kMiB);
  EXPECT_EQ(DefaultStoreMemoryBytes(100 * kGiB, kMiB), kGiB);
  EXPECT_EQ(DefaultStoreMemoryBytes(300 * kMiB, kMiB), 64 * kMiB);
  EXPECT_EQ(DefaultStoreMemoryBytes(100 * kMiB, kMiB), 0) << "it would be most of what is spare";
  EXPECT_EQ(DefaultStoreMemoryBytes(4 * kGiB, 128 * kMiB), kGiB) << "objects have to fit";
  EXPECT_EQ(DefaultStoreMemoryBytes(std::nullopt, kMiB), 256 * kMiB);
}

TEST(DefaultKvStoreBudgetTest, NoDiskIsFilled) {
  EXPECT_EQ(DefaultStoreDiskLimit(100 * kGiB, 0), 10 * kGiB);
  EXPECT_EQ(DefaultStoreDiskLimit(1000 * kGiB, 0), 16 * kGiB);
  EXPECT_EQ(DefaultStoreDiskLimit(0, 0), 0);
  // The same before and after a store was filled.
  EXPECT_EQ(DefaultStoreDiskLimit(90 * kGiB, 10 * kGiB), 10 * kGiB);
  EXPECT_EQ(DefaultStoreDiskLimit(~uint64_t{0}, ~uint64_t{0}), 16 * kGiB);
}

TEST(DefaultKvStoreBudgetTest, FoldersAreOfTheWeights) {
  const std::string name = DefaultStoreFolderName("/a/Model 1.gguf", "w");
  EXPECT_TRUE(name.starts_with("Model_1-")) << name;
  EXPECT_EQ(name, DefaultStoreFolderName("/b/Model 1.gguf", "w"));
  EXPECT_NE(name, DefaultStoreFolderName("/a/Model 1.gguf", "v"));
  EXPECT_TRUE(DefaultStoreFolderName("/a/folder/", "w").starts_with("folder-"));
  EXPECT_LT(DefaultStoreFolderName("/" + std::string(1000, 'x'), "w").size(), 100);
}

TEST_F(DefaultKvStoreTest, HasMemoryAndAFolderForTheUserAlone) {
  const auto store = Open();
  EXPECT_EQ(Tiers(store), 2);
  const std::string own =
      options_.root + "/" + DefaultStoreFolderName(options_.model_path, options_.weights);
  EXPECT_EQ(fs::status(own).permissions(), fs::perms::owner_all);
}

TEST_F(DefaultKvStoreTest, OfTwoOfOneModelTheSecondHasMemoryOnly) {
  const auto first = Open();
  EXPECT_EQ(Tiers(Open()), 1);
  options_.weights = "of another model";
  EXPECT_EQ(Tiers(Open()), 2);
}

TEST_F(DefaultKvStoreTest, AFolderThatCannotBeLeavesMemory) {
  std::ofstream(folder_ + "/file") << "no folder";
  options_.root = folder_ + "/file/kv-store";
  EXPECT_EQ(Tiers(Open()), 1);
  options_.root = "";
  EXPECT_EQ(Tiers(Open()), 1);
  options_.root = "/proc/kv-store";
  EXPECT_EQ(Tiers(Open()), 1);
}

TEST_F(DefaultKvStoreTest, TooLittleMemoryIsNoStore) {
  options_.spare_bytes = 0;
  EXPECT_EQ(Open(), nullptr);
}

// Files without content that claim to be large.
void MakeSegment(const std::string& folder, uint64_t bytes) {
  fs::create_directories(folder);
  const std::string path = folder + "/segment-0000000000000001.kvik";
  std::ofstream(path) << "";
  fs::resize_file(path, bytes);
}

TEST_F(DefaultKvStoreTest, OtherModelsMakeRoomUnlessTheyAreUsed) {
  // More than all stores may have together.
  const std::string used = options_.root + "/used-1";
  const std::string old = options_.root + "/old-1";
  MakeSegment(used, 4 * kMiB);
  MakeSegment(old, 40 * kGiB);
  std::ofstream(old + "/note") << "somebody else's";
  const auto lock = store::PosixFileSystem().LockFolder(used);
  ASSERT_TRUE(lock);
  EXPECT_EQ(Tiers(Open()), 2);
  EXPECT_FALSE(fs::exists(old + "/segment-0000000000000001.kvik"));
  EXPECT_TRUE(fs::exists(old + "/note"));
  EXPECT_TRUE(fs::exists(used + "/segment-0000000000000001.kvik"));
}

TEST_F(DefaultKvStoreTest, OtherModelsThatAreUsedLeaveMemory) {
  const std::string used = options_.root + "/used-1";
  MakeSegment(used, 40 * kGiB);
  const auto lock = store::PosixFileSystem().LockFolder(used);
  ASSERT_TRUE(lock);
  EXPECT_EQ(Tiers(Open()), 1);
  EXPECT_TRUE(fs::exists(used + "/segment-0000000000000001.kvik"));
}

}  // namespace
}  // namespace kvik::app
