#include "cli/pool_files.h"

#include <algorithm>

#include "cli/files.h"

namespace kvfabric::cli {
namespace {

// `_` stands in no Kubernetes name.
constexpr char kBetween = '_';

std::filesystem::path FileOf(const FabricDirectory& directory, const std::string& pool) {
  std::string name = pool;
  std::replace(name.begin(), name.end(), '/', kBetween);
  return directory.pools() / (name + ".yaml");
}

}  // namespace

Result<std::vector<std::string>> PoolNames(const FabricDirectory& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory.pools(), error), end; !error && it != end;
       it.increment(error)) {
    std::string name = it->path().stem().string();
    const auto between = name.find(kBetween);
    if (it->path().extension() != ".yaml" || between == std::string::npos) continue;
    name[between] = '/';
    names.push_back(std::move(name));
  }
  if (error == std::errc::no_such_file_or_directory)
    return NotFound(directory.root().string() +
                    ": no fabric here: start one with kvctl up -f POOL.yaml --agents 3");
  if (error) return Internal(directory.pools().string() + ": " + error.message());
  std::sort(names.begin(), names.end());
  return names;
}

Status SavePoolFile(const FabricDirectory& directory, const std::string& pool,
                    const std::string& yaml) {
  return WriteFileAtomically(FileOf(directory, pool), yaml, 0600);
}

Result<std::vector<PoolDocument>> WithAppliedPools(const FabricDirectory& directory,
                                                   std::vector<PoolDocument> pools) {
  const Result<std::vector<std::string>> names = PoolNames(directory);
  if (!names.ok()) {
    if (names.status().code() == StatusCode::kNotFound) return pools;
    return names.status();
  }
  for (const std::string& name : *names) {
    const auto same = [&](const PoolDocument& pool) { return pool.name == name; };
    if (std::any_of(pools.begin(), pools.end(), same)) continue;
    const std::filesystem::path file = FileOf(directory, name);
    KVF_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(file));
    // The whole file that was applied, perhaps with other pools in it.
    KVF_ASSIGN_OR_RETURN(std::vector<PoolDocument> applied, ReadPools(yaml, file.string()));
    const auto found = std::find_if(applied.begin(), applied.end(), same);
    if (found != applied.end()) pools.push_back(std::move(*found));
  }
  return pools;
}

Result<std::string> ChoosePool(const FabricDirectory& directory, const std::string& wanted) {
  KVF_ASSIGN_OR_RETURN(const std::vector<std::string> names, PoolNames(directory));
  if (wanted.empty() && names.size() == 1) return names[0];
  for (const std::string& name : names) {
    if (name == wanted || name == "default/" + wanted) return name;
  }
  std::string list;
  for (const std::string& name : names) list.append(" ").append(name);
  if (names.empty()) list = " none";
  return NotFound((wanted.empty() ? std::string("--pool: which one") : "pool " + wanted) +
                  ": there are" + list);
}

}  // namespace kvfabric::cli
