#include "operator/kube/object_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>

#include "common/bytes.h"
#include "operator/kube/yaml.h"

namespace kvfabric::kube {
namespace {

constexpr const char* kTmpSuffix = ".tmp";

Result<std::string> ReadFile(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return Unavailable(path.string() + ": read: " + error.message());
  if (size > 2 * kMaxObjectBytes) {
    return DataLoss(path.string() + ": read: too long (" + std::to_string(size) + " bytes)");
  }
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad() || text.size() != size) return Unavailable(path.string() + ": read: short");
  return text;
}

Status WriteAll(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write");
    done += static_cast<std::size_t>(n);
  }
  return Status::Ok();
}

Status SyncDirectory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return ErrnoStatus(errno, directory.string() + ": sync");
  return Status::Ok();
}

Status NoFault(const char* /*step*/) { return Status::Ok(); }

// How a file is replaced.
struct Writing {
  unsigned mode = 0600;
  bool sync = true;
  StoreFault step = NoFault;
};

Status Replace(const std::filesystem::path& path, const std::string& text, const Writing& writing,
               bool* renamed) {
  const StoreFault& step = writing.step;
  *renamed = false;
  const std::filesystem::path tmp = path.string() + kTmpSuffix;
  KVF_RETURN_IF_ERROR(step("create"));
  UniqueFd fd(::open(tmp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, writing.mode));
  if (!fd) return ErrnoStatus(errno, tmp.string() + ": create");
  KVF_RETURN_IF_ERROR(step("write"));
  KVF_RETURN_IF_ERROR(WriteAll(fd.get(), text).WithContext(tmp.string()));
  KVF_RETURN_IF_ERROR(step("sync"));
  if (writing.sync && ::fsync(fd.get()) != 0) return ErrnoStatus(errno, tmp.string() + ": sync");
  fd.reset();
  KVF_RETURN_IF_ERROR(step("rename"));
  if (::rename(tmp.c_str(), path.c_str()) != 0)
    return ErrnoStatus(errno, path.string() + ": rename");
  *renamed = true;
  KVF_RETURN_IF_ERROR(step("sync_directory"));
  return writing.sync ? SyncDirectory(path.parent_path()) : Status::Ok();
}

// A new directory is synced into its parent, so that a power cut does not take its files along.
Status MakeDirectories(const std::filesystem::path& directory) {
  std::error_code error;
  const bool made = std::filesystem::create_directories(directory, error);
  if (error) return Unavailable(directory.string() + ": create: " + error.message());
  return made ? SyncDirectory(directory.parent_path()) : Status::Ok();
}

}  // namespace

Status WriteFileAtomically(const std::filesystem::path& path, const std::string& text,
                           unsigned mode) {
  bool renamed = false;
  return Replace(path, text, {.mode = mode}, &renamed);
}

ObjectStore::ObjectStore(Options options, UniqueFd lock)
    : directory_(std::move(options.directory)),
      fault_(options.fault ? std::move(options.fault) : StoreFault(NoFault)),
      sync_(options.sync),
      lock_(std::move(lock)) {}

Result<std::unique_ptr<ObjectStore>> ObjectStore::Open(Options options) {
  KVF_RETURN_IF_ERROR(MakeDirectories(options.directory));
  const std::filesystem::path lock_path = options.directory / ".lock";
  UniqueFd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return ErrnoStatus(errno, lock_path.string() + ": open");
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, lock_path.string() + ": lock");
    return FailedPrecondition(options.directory.string() +
                              ": open: another operator holds it; stop that one first");
  }
  std::unique_ptr<ObjectStore> store(new ObjectStore(std::move(options), std::move(lock)));
  KVF_RETURN_IF_ERROR(store->Load());
  return store;
}

Status ObjectStore::Step(const char* step) const { return fault_(step); }

std::filesystem::path ObjectStore::PathOf(Kind kind, const ObjectName& name) const {
  std::filesystem::path path = directory_ / std::string(TraitsOf(kind).plural);
  if (!name.ns.empty()) path /= name.ns;
  return path / (name.name + ".yaml");
}

Status ObjectStore::Load() {
  KVF_RETURN_IF_ERROR(LoadRevision());
  for (const KindTraits& traits : AllKinds()) {
    const std::filesystem::path root = directory_ / std::string(traits.plural);
    KVF_RETURN_IF_ERROR(MakeDirectories(root));
    std::error_code error;
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root, error)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    if (error) return Unavailable(root.string() + ": list: " + error.message());
    std::sort(files.begin(), files.end());
    for (const std::filesystem::path& path : files) {
      if (path.extension() == kTmpSuffix) {
        std::filesystem::remove(path, error);  // a write that did not get to its rename
      } else {
        KVF_RETURN_IF_ERROR(LoadFile(traits.kind, path));
      }
    }
  }
  for (const Object& object : loaded_) {
    last_revision_ = std::max(last_revision_, object.meta.resource_version);
  }
  reserved_ = std::max(reserved_, last_revision_);
  last_revision_ = reserved_;
  return Status::Ok();
}

Status ObjectStore::LoadFile(Kind kind, const std::filesystem::path& path) {
  const auto unreadable = [&](const Status& why) {
    return DataLoss(path.string() + ": read: " + why.message() +
                    "; restore the file or remove it, then start again");
  };
  const Result<std::string> text = ReadFile(path);
  if (!text.ok()) return unreadable(text.status());
  Result<std::vector<std::string>> documents = YamlToJson(*text);
  if (!documents.ok()) return unreadable(documents.status());
  if (documents->size() != 1) return unreadable(DataLoss("not one object"));
  Result<Object> object = ParseObject(kind, std::move(documents->front()));
  if (!object.ok()) return unreadable(object.status());
  if (PathOf(kind, object->meta.name) != path || object->meta.uid.empty()) {
    return unreadable(DataLoss("holds " + object->meta.name.ToString() + " with uid \"" +
                               object->meta.uid + "\""));
  }
  loaded_.push_back(std::move(object).value());
  return Status::Ok();
}

Status ObjectStore::LoadRevision() {
  const std::filesystem::path path = directory_ / "revision";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Status::Ok();
  KVF_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const auto [end, parse_error] =
      std::from_chars(text.data(), text.data() + text.size(), reserved_);
  if (parse_error != std::errc() || end == text.data()) {
    return DataLoss(path.string() + ": read: not a number; remove it only together with all of " +
                    directory_.string());
  }
  return Status::Ok();
}

Result<std::uint64_t> ObjectStore::NextRevision() {
  if (last_revision_ == reserved_) {
    bool renamed = false;
    const std::uint64_t reserve = reserved_ + kReserve;
    KVF_RETURN_IF_ERROR(
        ReplaceFile(directory_ / "revision", std::to_string(reserve) + "\n", &renamed));
    reserved_ = reserve;
  }
  return ++last_revision_;
}

Status ObjectStore::ReplaceFile(const std::filesystem::path& path, const std::string& text,
                                bool* renamed) {
  return Replace(path, text, {.mode = 0600, .sync = sync_, .step = fault_}, renamed);
}

Status ObjectStore::Write(Kind kind, const ObjectName& name, const std::string& json,
                          bool* renamed) {
  *renamed = false;
  KVF_ASSIGN_OR_RETURN(const std::string yaml, JsonToYaml(json));
  // A file that reads as another object, or not at all, would show at the next start only.
  const Result<std::vector<std::string>> back = YamlToJson(yaml);
  if (!back.ok() || back->size() != 1 || back->front() != json) {
    return InvalidArgument("write " + name.ToString() +
                           ": holds characters that a YAML file cannot: remove them");
  }
  const std::filesystem::path path = PathOf(kind, name);
  KVF_RETURN_IF_ERROR(MakeDirectories(path.parent_path()));
  return ReplaceFile(path, yaml, renamed);
}

Status ObjectStore::Remove(Kind kind, const ObjectName& name, bool* removed) {
  *removed = false;
  const std::filesystem::path path = PathOf(kind, name);
  KVF_RETURN_IF_ERROR(Step("unlink"));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, path.string() + ": remove");
  }
  *removed = true;
  KVF_RETURN_IF_ERROR(Step("sync_directory"));
  return sync_ ? SyncDirectory(path.parent_path()) : Status::Ok();
}

}  // namespace kvfabric::kube
