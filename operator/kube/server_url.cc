#include "operator/kube/server_url.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace kvfabric::kube {
namespace {

bool IsPort(std::string_view text) {
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0 && port < 65'536;
}

bool IsHost(std::string_view text) {
  const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  if (bracketed) text = text.substr(1, text.size() - 2);
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return word || c == '.' || c == '-' || c == '_' || (bracketed && (c == ':' || c == '%'));
  });
}

bool IsPrefix(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c > ' ' && c < 0x7F && c != '?' && c != '#'; });
}

bool IsLoopback(std::string_view host) {
  return host == "localhost" || host == "[::1]" ||
         (host.substr(0, 4) == "127." && host.find_first_not_of("0123456789.") == host.npos);
}

}  // namespace

Result<ServerUrl> ParseServerUrl(std::string_view text) {
  const auto refuse = [&](const char* why) {
    return InvalidArgument("server: \"" + std::string(text.substr(0, 200)) + "\": " + why);
  };
  ServerUrl url;
  const std::size_t colons = text.find("://");
  if (colons == std::string_view::npos) return refuse("write https://HOST:PORT");
  url.scheme = text.substr(0, colons);
  if (url.scheme != "https" && url.scheme != "http") return refuse("write https://HOST:PORT");
  const std::string_view rest = text.substr(colons + 3);
  const std::size_t slash = rest.find('/');
  std::string_view host = rest.substr(0, slash);
  if (slash != std::string_view::npos) url.prefix = rest.substr(slash);
  while (!url.prefix.empty() && url.prefix.back() == '/') url.prefix.pop_back();
  url.port = url.scheme == "https" ? "443" : "80";
  const std::size_t colon = host.rfind(':');
  if (colon != std::string_view::npos && host.back() != ']') {
    url.port = host.substr(colon + 1);
    host = host.substr(0, colon);
  }
  url.host = host;
  if (!IsHost(host) || !IsPort(url.port) || !IsPrefix(url.prefix)) {
    return refuse("write https://HOST:PORT, IPv6 addresses in brackets");
  }
  url.loopback = IsLoopback(host);
  if (url.scheme == "http" && !url.loopback) {
    return refuse("clear text would show the token to the network; write https");
  }
  url.origin = url.scheme + "://" + url.host + ":" + url.port;
  return url;
}

}  // namespace kvfabric::kube
