#pragma once

// The order of a slot's byte owners. The first owner answers look-ups and re-replicates after a
// loss, so first places are shared in proportion to seats; reordering moves no bytes.

#include <span>

#include "placement/seat_ledger.h"

namespace kvfabric {

// Reorders the first `byte_columns` columns of each slot in place. A slot that lost an owner keeps
// a surviving one first: it has the bytes and the entries. Moves as few first places as needed.
void BalanceFirstOwners(SeatTable& table, std::uint32_t byte_columns,
                        std::span<const Seating> seating);

}  // namespace kvfabric
