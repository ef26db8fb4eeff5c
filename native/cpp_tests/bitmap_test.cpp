#include "aegaeon/bitmap.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

using aegaeon::Bitmap;

TEST(Bitmap, AgreesWithASetUnderRandomUse) {
  for (const std::size_t size : {1, 63, 64, 65, 4096, 4097, 300000}) {
    Bitmap bitmap(size);
    std::set<std::size_t> model;
    std::mt19937_64 random(size);
    for (int step = 0; step < 4000; ++step) {
      const std::size_t i = random() % size;
      if (random() % 2 == 0) {
        bitmap.insert(i);
        model.insert(i);
      } else {
        bitmap.erase(i);
        model.erase(i);
      }
      const std::size_t from = random() % size;
      const auto next = model.lower_bound(from);
      ASSERT_EQ(bitmap.next(from), next == model.end() ? Bitmap::kNone : *next);
      ASSERT_EQ(bitmap.lowest(), model.empty() ? Bitmap::kNone : *model.begin());
      ASSERT_EQ(bitmap.count(), model.size());
    }
    EXPECT_EQ(bitmap.recount(), model.size());
  }
}
