#include "cli/verbs.h"

#include <cstdio>

namespace kvfabric::cli {

Option DirectoryOption(std::string* directory) {
  return {.names = "-d,--dir",
          .target = directory,
          .help = "directory of the fabric (default: ~/.kvfabric)",
          .required = false,
          .choices = {}};
}

Option OutputOption(std::string* output) {
  return {.names = "-o,--output",
          .target = output,
          .help = "text for people, json for scripts",
          .required = false,
          .choices = {"text", "json"}};
}

ExitCode Fail(const Status& status) {
  std::fprintf(stderr, "kvctl: %s\n", status.message().c_str());
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return ExitCode::kInvalid;
    case StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case StatusCode::kUnavailable:
      return ExitCode::kNotRunning;
    case StatusCode::kDeadlineExceeded:
      return ExitCode::kTimedOut;
    case StatusCode::kCancelled:
      return ExitCode::kInterrupted;
    default:
      return ExitCode::kFailed;
  }
}

}  // namespace kvfabric::cli
