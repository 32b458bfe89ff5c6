#include "placement/range.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "placement/plan_support.h"
#include "placement/quota.h"

namespace kvfabric {
namespace {

// One column after another, each round the slots.
class Layout {
 public:
  explicit Layout(const PlanFrame& frame);

  // Cuts the byte columns.
  void FillBytes(std::vector<MemberIndex>& table);
  // Cuts the one directory column beside a single byte column; after FillBytes.
  void FillDirectory(std::vector<MemberIndex>& table);

 private:
  std::vector<std::uint32_t> Quotas(std::uint32_t columns,
                                    const std::vector<std::uint32_t>& member_caps,
                                    const std::vector<std::uint32_t>& domain_caps) const;
  // Members in order, each as often as its quota says.
  std::vector<MemberIndex> Line(const std::vector<std::uint32_t>& quotas) const;
  void DirectoryBesideAHeavyDomain(std::uint32_t domain, std::vector<MemberIndex>& table) const;

  const PlanFrame& frame_;
  const std::uint32_t slots_;
  std::vector<MemberIndex> order_;  // who may own, one domain after another
  std::vector<std::uint32_t> domain_seats_;
  std::vector<std::uint32_t> member_seats_;
};

Layout::Layout(const PlanFrame& frame) : frame_(frame), slots_(frame.map.slot_count) {
  for (std::size_t i = 0; i < frame.seating.size(); ++i) {
    if (frame.seating[i].weight > 0) order_.push_back(static_cast<MemberIndex>(i));
  }
  std::stable_sort(order_.begin(), order_.end(), [&](MemberIndex a, MemberIndex b) {
    return frame.seating[a].domain < frame.seating[b].domain;
  });
  std::uint32_t domains = 0;
  for (const Seating& seating : frame.seating) domains = std::max(domains, seating.domain + 1);
  domain_seats_.assign(domains, 0);
  member_seats_.assign(frame.seating.size(), 0);
}

std::vector<std::uint32_t> Layout::Quotas(std::uint32_t columns,
                                          const std::vector<std::uint32_t>& member_caps,
                                          const std::vector<std::uint32_t>& domain_caps) const {
  std::vector<MemberClaim> claims(frame_.seating.size());
  for (std::size_t i = 0; i < claims.size(); ++i) {
    claims[i].claim.weight = frame_.seating[i].weight;
    claims[i].claim.cap = frame_.seating[i].weight > 0 ? member_caps[i] : 0;
    claims[i].domain = frame_.seating[i].domain;
  }
  return ShareSeatsByDomain(claims, domain_caps, slots_ * columns);
}

std::vector<MemberIndex> Layout::Line(const std::vector<std::uint32_t>& quotas) const {
  std::vector<MemberIndex> line;
  for (const MemberIndex member : order_) line.insert(line.end(), quotas[member], member);
  return line;
}

void Layout::FillBytes(std::vector<MemberIndex>& table) {
  const std::uint32_t replicas = frame_.map.replicas;
  const auto columns = static_cast<std::uint32_t>(std::min<std::size_t>(replicas, order_.size()));
  if (columns == 0) return;
  // Fewer domains than copies: each domain still has every slot once, the rest is shared.
  const std::uint32_t rounds = columns - std::min(columns, frame_.domain_count) + 1;
  member_seats_ = Quotas(columns, std::vector<std::uint32_t>(frame_.seating.size(), slots_),
                         std::vector<std::uint32_t>(domain_seats_.size(), slots_ * rounds));
  for (const MemberIndex member : order_) {
    domain_seats_[frame_.seating[member].domain] += member_seats_[member];
  }
  const std::vector<MemberIndex> line = Line(member_seats_);
  const std::uint32_t width = frame_.map.owners_per_slot;
  for (SlotIndex slot = 0; slot < slots_; ++slot) {
    for (std::uint32_t c = 0; c < columns; ++c) {
      const std::uint32_t place = (c + slot) % columns;
      table[std::size_t{slot} * width + place] = line[std::size_t{c} * slots_ + slot];
    }
  }
}

// The domain has more than half of the slots: others know where its blocks are, and it knows where
// theirs are.
void Layout::DirectoryBesideAHeavyDomain(std::uint32_t domain,
                                         std::vector<MemberIndex>& table) const {
  std::vector<std::uint32_t> member_caps(frame_.seating.size(), 0);
  for (const MemberIndex member : order_) member_caps[member] = slots_ - member_seats_[member];
  std::vector<std::uint32_t> domain_caps(domain_seats_.size(), slots_);
  domain_caps[domain] = slots_ - domain_seats_[domain];
  const std::vector<std::uint32_t> quotas = Quotas(1, member_caps, domain_caps);
  std::vector<MemberIndex> inside;
  std::vector<MemberIndex> outside;
  for (const MemberIndex member : order_) {
    auto& line = frame_.seating[member].domain == domain ? inside : outside;
    line.insert(line.end(), quotas[member], member);
  }
  std::size_t next_inside = 0;
  std::size_t next_outside = 0;
  for (SlotIndex slot = 0; slot < slots_; ++slot) {
    MemberIndex* const owners = &table[std::size_t{slot} * frame_.map.owners_per_slot];
    if (frame_.seating[owners[0]].domain == domain) {
      owners[1] = next_outside < outside.size() ? outside[next_outside++] : kNoOwner;
    } else {
      owners[1] = next_inside < inside.size() ? inside[next_inside++] : kNoOwner;
    }
  }
}

void Layout::FillDirectory(std::vector<MemberIndex>& table) {
  const std::uint32_t width = frame_.map.owners_per_slot;
  if (width == frame_.map.replicas || order_.size() < 2) return;
  const auto heaviest = std::max_element(domain_seats_.begin(), domain_seats_.end());
  if (*heaviest > slots_ / 2) {
    DirectoryBesideAHeavyDomain(static_cast<std::uint32_t>(heaviest - domain_seats_.begin()),
                                table);
    return;
  }
  for (SlotIndex slot = 0; slot < slots_; ++slot) {
    const SlotIndex opposite = (slot + slots_ / 2) % slots_;
    table[std::size_t{slot} * width + 1] = table[std::size_t{opposite} * width];
  }
}

}  // namespace

Result<PlanResult> Range::Plan(const PlanInput& input) const {
  KVF_ASSIGN_OR_RETURN(const PlanFrame frame, PreparePlan(input));
  PlanResult result;
  result.map = frame.map;
  result.map.table.assign(std::size_t{result.map.slot_count} * result.map.owners_per_slot,
                          kNoOwner);
  Layout layout(frame);
  layout.FillBytes(result.map.table);
  layout.FillDirectory(result.map.table);
  DescribePlan(input, frame, result);
  return result;
}

}  // namespace kvfabric
