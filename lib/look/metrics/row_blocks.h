#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/parallel.h"

namespace twofour {

/// The part [begin, end) of an item that is processed in pieces.
struct RowBlock {
  size_t item;
  int64_t begin, end;
};

/// An item that is cut into row blocks.
struct RowBlockItem {
  size_t item;
  int64_t length, step;  ///< blocks have `step` rows; the last may have fewer
};

/// Cuts items into row blocks and processes these on OpenMP's threads. It merges the results in order, so
/// that sums do not depend on the number of threads. `make_worker()` is called on each thread and returns a
/// function that makes a Result from a RowBlock. An Error of that function becomes the `failure` of the
/// Result. A ReadError or another exception ends the run.
template <class Result, class MakeWorker, class Merge>
void for_each_row_block(const std::vector<RowBlockItem>& items, MakeWorker make_worker, Merge merge) {
  constexpr size_t kBatch = 4096;  // results that are collected before they are merged
  std::vector<RowBlock> row_blocks;
  const auto flush = [&] {
    std::vector<Result> results(row_blocks.size());
    parallel_workers(row_blocks.size(), [&] {
      return [&, work = make_worker()](size_t i) mutable {
        try {
          check_interrupt();
          results[i] = work(row_blocks[i]);
        } catch (const ReadError&) {
          throw;
        } catch (const Error& e) {
          results[i].failure = e.what();
        }
      };
    });
    for (size_t i = 0; i < results.size(); ++i) merge(row_blocks[i], std::move(results[i]));
    row_blocks.clear();
  };
  for (const RowBlockItem& item : items) {
    for (int64_t begin = 0; begin < item.length; begin += item.step) {
      row_blocks.push_back({item.item, begin, std::min(item.length, begin + item.step)});
      if (row_blocks.size() == kBatch) flush();
    }
  }
  flush();
}

}  // namespace twofour
