#pragma once
#include <span>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Sets Member::shares_zero_rows and shares_zero_columns: another matrix of the same block has zeros at the
/// same channels, as after pruning of neurons, heads and inputs. Partners are the rows of gate or up and
/// the columns of down, the rows of q or v and the columns of o, rows of gate and of up, and the columns of
/// matrices with one input.
void find_zero_partners(std::span<Member> members);

/// True if zeros are at random places, so that chance explains their longest run.
bool are_scattered(const ZeroPlaces& places, uint64_t longest, uint64_t size);

}  // namespace twofour
