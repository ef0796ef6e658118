#include "lib/base/names/block_orders.h"

#include <doctest/doctest.h>

#include <string>

namespace block_orders_test {

using namespace twofour;

TEST_CASE("names of orders and rotations are known by their words") {
  for (const char* leaf :
       {"expert_perm", "perm", "channel_perms", "permutation", "input_permutations", "reorder",
        "reordering_idx", "rotation", "down_rotation", "R_hadamard", "hadamard_64"}) {
    CAPTURE(leaf);
    CHECK(names_order(leaf));
  }
  for (const char* leaf : {"weight", "bias", "permanent", "expert_bias", "rotary_emb", "sinks", "A_log",
                           "dt_bias", "attn_order2", "superman", "temperature", "", "_", "tid2eid"}) {
    CAPTURE(leaf);
    CHECK(!names_order(leaf));
  }
}

}  // namespace block_orders_test
