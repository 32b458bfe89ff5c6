// A thousand random changes of a pool, planned one after another. After every plan: each slot has
// an owner; no slot lost all of its former owners while one of them could stay; the list of moves
// is the difference of the two maps. Once nothing is left to move: loads are within one of the
// exact share and owners differ in zone.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/fakes/test_seed.h"
#include "tests/placement/test_pool.h"

namespace kvfabric {
namespace {

constexpr int kSteps = 1'000;
constexpr std::size_t kMostMembers = 16;

struct ChurnCase {
  std::uint32_t replicas;
  int zones;
  bool limited;  // with the 5 % limit instead of none
};

bool MayOwn(const Member& member) {
  return member.state != MemberState::kLost && member.state != MemberState::kDraining;
}

class PlannerChurn : public ::testing::TestWithParam<ChurnCase> {
 protected:
  PlannerChurn() : random_(TestSeed()), pool_(GetParam().replicas) {
    if (GetParam().limited) pool_.input.balance_slots_max.reset();
  }

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }
  std::size_t OwningMembers() const {
    return static_cast<std::size_t>(
        std::count_if(pool_.input.members.begin(), pool_.input.members.end(),
                      [](const PlanMember& wanted) { return MayOwn(wanted.member); }));
  }

  void Change() {
    std::vector<PlanMember>& members = pool_.input.members;
    if (members.size() < 4 || (Below(3) == 0 && members.size() < kMostMembers)) {
      pool_.AddMembers(1, GetParam().zones);
      members.back().member.weight = (32 + Below(4) * 32) * kGiB;
      return;
    }
    PlanMember& wanted = members[Below(members.size())];
    switch (Below(6)) {
      case 0:
        if (OwningMembers() > 2 || !MayOwn(wanted.member)) {
          members.erase(members.begin() + (&wanted - members.data()));
        }
        return;
      case 1:
        if (OwningMembers() > 2) wanted.member.state = MemberState::kLost;
        return;
      case 2:
        if (OwningMembers() > 2) wanted.member.state = MemberState::kDraining;
        return;
      case 3:
        wanted.member.state = MemberState::kJoining;
        wanted.quota_permille = static_cast<std::uint32_t>(1 + Below(10)) * 100;
        return;
      case 4:
        wanted.member.weight = (32 + Below(4) * 32) * kGiB;
        return;
      default:
        wanted.member.state = MemberState::kActive;
    }
  }

  // Several members can go at once.
  void ChangeSome() {
    for (std::uint64_t i = 0; i <= Below(3); ++i) Change();
  }

  void PlanOnce() {
    const ShardMap before = pool_.map;
    const PlanResult plan = pool_.Plan();
    remaining_ = plan.misplaced_remaining;
    ASSERT_NO_FATAL_FAILURE(CheckSurvivors(before, pool_.map));
    ASSERT_NO_FATAL_FAILURE(CheckMoves(before, plan));
    moved_ += plan.byte_moves;
    fewest_ += LowerBound(before, pool_.map);
    if (remaining_ == 0) {
      ASSERT_NO_FATAL_FAILURE(CheckBalance());
    }
  }

  void CheckSurvivors(const ShardMap& before, const ShardMap& after) {
    std::vector<MemberIndex> now(before.members.size(), kNoOwner);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const Member& member = before.members[i];
      const auto found = after.FindMember(member.node_name, member.agent_uid);
      if (found.has_value() && MayOwn(after.members[*found])) now[i] = *found;
    }
    for (SlotIndex slot = 0; slot < after.slot_count; ++slot) {
      ASSERT_NE(after.Owners(slot)[0], kNoOwner) << "slot " << slot << " has no owner";
      bool survivor = false;
      bool stays = false;
      for (const MemberIndex owner : before.Owners(slot)) {
        if (owner == kNoOwner || now[owner] == kNoOwner) continue;
        survivor = true;
        stays = stays || after.Owns(now[owner], slot);
      }
      ASSERT_TRUE(stays || !survivor) << "slot " << slot << " lost all its surviving owners";
    }
  }

  void CheckMoves(const ShardMap& before, const PlanResult& plan) {
    std::vector<MemberIndex> old_index;
    for (const Member& member : plan.map.members) {
      old_index.push_back(before.FindMember(member.node_name, member.agent_uid).value_or(kNoOwner));
    }
    const auto had = [&](SlotIndex slot, MemberIndex member, std::uint32_t columns) {
      const auto owners = before.Owners(slot).first(columns);
      return old_index[member] != kNoOwner &&
             std::find(owners.begin(), owners.end(), old_index[member]) != owners.end();
    };
    std::uint32_t byte_moves = 0;
    std::size_t at = 0;
    for (SlotIndex slot = 0; slot < plan.map.slot_count; ++slot) {
      for (std::uint32_t c = 0; c < plan.map.owners_per_slot; ++c) {
        const MemberIndex owner = plan.map.Owners(slot)[c];
        if (owner == kNoOwner) continue;
        const bool bytes = c < plan.map.replicas;
        if (had(slot, owner, bytes ? before.replicas : before.owners_per_slot)) continue;
        ASSERT_LT(at, plan.moves.size());
        ASSERT_EQ(plan.moves[at].slot, slot);
        ASSERT_EQ(plan.moves[at].column, c);
        ASSERT_EQ(plan.moves[at].to, owner);
        ++at;
        byte_moves += bytes ? 1 : 0;
      }
    }
    ASSERT_EQ(at, plan.moves.size());
    ASSERT_EQ(byte_moves, plan.byte_moves);
  }

  // Everyone's load per unit of share, where neither zones nor a member's size cap it.
  void CheckBalance() {
    const ShardMap& map = pool_.map;
    const std::uint32_t replicas = map.replicas;
    const auto loads = Loads(map, 0, replicas);
    std::vector<double> shares(loads.size(), 0);
    std::map<std::string, double> zones;
    double total = 0;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      if (!MayOwn(map.members[i])) {
        ASSERT_EQ(loads[i], 0U);
        continue;
      }
      shares[i] = static_cast<double>(map.members[i].weight);
      if (map.members[i].state == MemberState::kJoining) {
        shares[i] *= QuotaPermille(map.members[i]) / 1000.0;
      }
      total += shares[i];
      zones[DomainOf(map.members[i])] += shares[i];
    }
    // As many zones as replicas: each has every slot once, whatever it weighs.
    for (std::size_t i = 0; i < loads.size() && zones.size() == replicas; ++i) {
      if (shares[i] > 0) shares[i] /= zones[DomainOf(map.members[i])];
    }
    if (zones.size() == replicas) {
      total = replicas;
      for (auto& [zone, share] : zones) share = 1;
    }
    double largest = 0;
    for (const auto& [zone, share] : zones) largest = std::max(largest, share);
    // A zone above 1/R of the weight, or fewer zones than replicas: quotas are capped.
    if (zones.size() < replicas || largest * replicas > total) return;
    ++balanced_checks_;
    for (std::size_t i = 0; i < loads.size(); ++i) {
      ASSERT_NEAR(loads[i], map.slot_count * replicas * shares[i] / total, 2.0) << i;
    }
    for (SlotIndex slot = 0; slot < map.slot_count; ++slot) {
      const auto owners = map.ByteOwners(slot);
      for (std::size_t c = 1; c < owners.size(); ++c) {
        for (std::size_t d = 0; d < c; ++d) {
          ASSERT_NE(DomainOf(map.members[owners[c]]), DomainOf(map.members[owners[d]]));
        }
      }
    }
  }

  const std::string& DomainOf(const Member& member) const {
    return GetParam().zones > 0 ? member.zone : member.node_name;
  }

  double QuotaPermille(const Member& member) const {
    for (const PlanMember& wanted : pool_.input.members) {
      if (wanted.member.SameIdentity(member)) return wanted.quota_permille;
    }
    return 0;
  }

  std::mt19937_64 random_;
  TestPool pool_;
  std::uint32_t remaining_ = 0;
  std::uint64_t moved_ = 0;
  std::uint64_t fewest_ = 0;
  int balanced_checks_ = 0;
};

TEST_P(PlannerChurn, NeverLosesASurvivor) {
  const int steps = static_cast<int>(kSteps / TimeScale());  // fewer under sanitizers
  for (int i = 0; i < 6; ++i) Change();
  pool_.Plan();
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    ChangeSome();
    ASSERT_NO_FATAL_FAILURE(PlanOnce());
    // Mostly the next change comes in the middle of a move; now and then there is time to end it.
    for (int plans = 0; step % 40 == 39 && remaining_ > 0; ++plans) {
      ASSERT_LT(plans, 100) << "the plans do not come to an end";
      ASSERT_NO_FATAL_FAILURE(PlanOnce());
    }
  }
  EXPECT_GT(balanced_checks_, 0);
  const double ratio = static_cast<double>(moved_) / static_cast<double>(fewest_);
  std::printf("moved %.3f x the lower bound, balance checked %d times\n", ratio, balanced_checks_);
  EXPECT_LE(ratio, GetParam().replicas == 1 ? 1.05 : 1.3);
}

std::string CaseName(const ::testing::TestParamInfo<ChurnCase>& test_case) {
  const ChurnCase& churn = test_case.param;
  return "Replicas" + std::to_string(churn.replicas) + "Zones" + std::to_string(churn.zones) +
         (churn.limited ? "Limited" : "");
}

INSTANTIATE_TEST_SUITE_P(Pools, PlannerChurn,
                         ::testing::Values(ChurnCase{1, 0, false}, ChurnCase{1, 3, true},
                                           ChurnCase{2, 3, false}, ChurnCase{2, 0, true},
                                           ChurnCase{3, 4, false}, ChurnCase{3, 3, true}),
                         CaseName);

}  // namespace
}  // namespace kvfabric
