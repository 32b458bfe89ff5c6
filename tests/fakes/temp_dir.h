#pragma once

// TempDir: a fresh directory that goes away with the object.

#include <cstdlib>
#include <filesystem>
#include <string>

#include "common/check.h"

namespace kvfabric {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "kvfabric-test-XXXXXX").string();
    KVF_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a temporary directory");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;  // would remove it twice
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace kvfabric
