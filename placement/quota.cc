#include "placement/quota.h"

#include <algorithm>

namespace kvfabric {
namespace {

// A claim that gets its exact share rounded down, or one seat more.
struct Rounded {
  std::size_t index = 0;
  std::uint64_t remainder = 0;
  bool keeps_ceiling = false;  // it holds the higher number already
};

bool TakesSeatBefore(const Rounded& a, const Rounded& b) {
  if (a.keeps_ceiling != b.keeps_ceiling) return a.keeps_ceiling;
  if (a.remainder != b.remainder) return a.remainder > b.remainder;
  return a.index < b.index;
}

// Fixes every claim whose proportional share is above its cap at the cap, the most exceeded
// first, since each one fixed raises the share of the others. Returns what is left for the rest.
struct OpenClaims {
  std::vector<bool> fixed;
  std::uint64_t seats = 0;
  std::uint64_t weight = 0;
};

bool FixMostExceeded(std::span<const QuotaClaim> claims, OpenClaims& open,
                     std::vector<std::uint32_t>& quotas) {
  std::size_t worst = claims.size();
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (open.fixed[i] || open.seats * claims[i].weight <= claims[i].cap * open.weight) continue;
    if (worst == claims.size() ||
        claims[i].weight * claims[worst].cap > claims[worst].weight * claims[i].cap) {
      worst = i;
    }
  }
  if (worst == claims.size()) return false;
  open.fixed[worst] = true;
  quotas[worst] = claims[worst].cap;
  open.seats -= claims[worst].cap;
  open.weight -= claims[worst].weight;
  return true;
}

}  // namespace

std::vector<std::uint32_t> ShareSeats(std::span<const QuotaClaim> claims, std::uint32_t seats) {
  std::vector<std::uint32_t> quotas(claims.size(), 0);
  OpenClaims open{.fixed = std::vector<bool>(claims.size(), false)};
  std::uint64_t room = 0;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    open.fixed[i] = claims[i].weight == 0;
    open.weight += claims[i].weight;
    if (!open.fixed[i]) room += claims[i].cap;
  }
  open.seats = std::min<std::uint64_t>(seats, room);
  while (FixMostExceeded(claims, open, quotas)) {
  }
  if (open.weight == 0) return quotas;

  std::vector<Rounded> rounded;
  std::uint64_t left = open.seats;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    if (open.fixed[i]) continue;
    const std::uint64_t share = open.seats * claims[i].weight;
    quotas[i] = static_cast<std::uint32_t>(share / open.weight);
    left -= quotas[i];
    if (share % open.weight != 0) {
      rounded.push_back({i, share % open.weight, claims[i].holds > quotas[i]});
    }
  }
  // Remainders sum to `left` x weight and each is below one weight, so `left` < rounded.size();
  // and a share that is not whole lies below its cap, so one seat more still fits.
  std::sort(rounded.begin(), rounded.end(), TakesSeatBefore);
  for (std::size_t i = 0; i < left; ++i) ++quotas[rounded[i].index];
  return quotas;
}

std::vector<std::uint32_t> ShareSeatsByDomain(std::span<const MemberClaim> claims,
                                              std::span<const std::uint32_t> domain_caps,
                                              std::uint32_t seats) {
  std::vector<QuotaClaim> domains(domain_caps.size());
  std::vector<std::vector<std::size_t>> members(domain_caps.size());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const MemberClaim& member = claims[i];
    if (member.claim.weight == 0) continue;
    QuotaClaim& domain = domains[member.domain];
    domain.weight += member.claim.weight;
    domain.holds += member.claim.holds;
    domain.cap += member.claim.cap;
    members[member.domain].push_back(i);
  }
  for (std::size_t d = 0; d < domains.size(); ++d) {
    domains[d].cap = std::min(domains[d].cap, domain_caps[d]);
  }
  const std::vector<std::uint32_t> domain_quotas = ShareSeats(domains, seats);
  std::vector<std::uint32_t> quotas(claims.size(), 0);
  std::vector<QuotaClaim> inside;
  for (std::size_t d = 0; d < domains.size(); ++d) {
    inside.clear();
    for (const std::size_t i : members[d]) inside.push_back(claims[i].claim);
    const std::vector<std::uint32_t> shares = ShareSeats(inside, domain_quotas[d]);
    for (std::size_t k = 0; k < shares.size(); ++k) quotas[members[d][k]] = shares[k];
  }
  return quotas;
}

}  // namespace kvfabric
