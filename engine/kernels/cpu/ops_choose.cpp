// Drawing tokens: what engine/kernels/reference_sampling.py says, a row at a time. A row's token depends on that row alone.
#include <algorithm>
#include <cmath>
#include <functional>

#include "ops.h"

namespace bayard {
namespace {

constexpr float kLeastTemperature = 1e-5f;
constexpr int64_t kRun = 256;
constexpr int64_t kFirstSorted = 256;  // of the likeliest; most nuclei are smaller

// Columns of a row's settings.
enum { kTemperature, kTopP, kMinP, kTopK, kUniform, kRepetition, kPresence, kFrequency, kSettings };

void penalise(const float* row, const int32_t* counts, const float* s, int64_t k, float* out) {
  for (int64_t i = 0; i < k; i++) {
    float v = row[i];
    if (counts[i] > 0) v = v > 0 ? v / s[kRepetition] : v * s[kRepetition];
    const int32_t outputs = counts[i] >> 1;
    out[i] = v - s[kFrequency] * static_cast<float>(outputs) - (outputs > 0 ? s[kPresence] : 0.0f);
  }
}

// The sum of what is at least `border` among count of p, in an order of its own but always the same one.
double kept_sum(const float* p, int64_t count, float border) {
  double sums[8] = {};
  const int64_t whole = count / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8)
    for (int j = 0; j < 8; j++) sums[j] += p[i + j] >= border ? p[i + j] : 0.0f;
  for (int64_t i = whole; i < count; i++) sums[0] += p[i] >= border ? p[i] : 0.0f;
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// Values of p that are at least `least`, in any order; their number.
int64_t gather(const float* p, int64_t k, float least, float* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < k; i++) {
    out[count] = p[i];
    count += p[i] >= least;
  }
  return count;
}

// The n-th largest of p, whose largest is 1.
float nth_largest(const float* p, int64_t k, int64_t n, float* room) {
  for (float least : {1e-2f, 1e-4f, 1e-7f, 0.0f}) {
    const int64_t count = gather(p, k, least, room);
    if (count < n) continue;
    std::nth_element(room, room + n - 1, room + count, std::greater<float>());
    return room[n - 1];
  }
  return 0.0f;
}

// The least of the likeliest that together reach top_p of what is at least `lowest`.
float nucleus(const float* p, int64_t k, float top_p, float lowest, float* room) {
  const double total = kept_sum(p, k, lowest);
  // All that lie below this are together less than what top_p leaves out.
  const auto least = static_cast<float>((1.0 - static_cast<double>(top_p)) * total / static_cast<double>(k));
  const int64_t count = gather(p, k, std::max(lowest, least), room);
  const double wanted = static_cast<double>(top_p) * total;
  double before = 0;
  float border = 1.0f;
  for (int64_t begin = 0, size = kFirstSorted; begin < count; begin += size, size *= 2) {
    const int64_t end = std::min(count, begin + size);
    if (end < count) std::nth_element(room + begin, room + end - 1, room + count, std::greater<float>());
    std::sort(room + begin, room + end, std::greater<float>());
    for (int64_t i = begin; i < end; i++) {
      if (i && !(before < wanted)) return border;
      border = room[i];
      before += room[i];
    }
  }
  return border;
}

// The place in a run where the sum passes target; the last that is kept where rounding lets it pass none.
int64_t place(const float* p, int64_t begin, int64_t end, float border, double sum, double target) {
  int64_t last = begin;
  for (int64_t i = begin; i < end; i++) {
    if (!(p[i] >= border) || p[i] <= 0.0f) continue;
    sum += p[i];
    last = i;
    if (sum > target) break;
  }
  return last;
}

int32_t draw(const float* p, int64_t k, float border, float uniform) {
  double total = 0, sum = 0;
  int64_t filled = 0;  // the last run that holds something
  for (int64_t at = 0; at < k; at += kRun) {
    const double more = kept_sum(p + at, std::min(kRun, k - at), border);
    if (more > 0) filled = at;
    total += more;
  }
  const double target = static_cast<double>(uniform) * total;
  for (int64_t at = 0; at < filled; at += kRun) {
    const double more = kept_sum(p + at, kRun, border);
    if (sum + more > target) return static_cast<int32_t>(place(p, at, at + kRun, border, sum, target));
    sum += more;
  }
  return static_cast<int32_t>(place(p, filled, std::min(k, filled + kRun), border, sum, target));
}

}  // namespace

void run_choose(Team& team, const Rows& logits, int64_t k, const int32_t* rows, const float* settings,
                const int32_t* counts, const int32_t* count_rows, int64_t count, int32_t* out) {
  team.each(count, 1, [&](int64_t first, int64_t end) {
    const int64_t padded = (k + 15) / 16 * 16;
    float* p = reinterpret_cast<float*>(team.scratch(2 * padded * 4));
    float* room = p + padded;
    for (int64_t at = first; at < end; at++) {
      const float* s = settings + at * kSettings;
      const float* values = logits.row(rows[at]);
      if (count_rows[at] >= 0) {
        penalise(values, counts + count_rows[at] * k, s, k, p);
        values = p;
      }
      const int64_t best = std::max<int64_t>(0, kernels().argmax_row(values, k, false));
      if (s[kTemperature] == 0.0f) {
        out[at] = static_cast<int32_t>(best);
        continue;
      }
      kernels().exp_row(values, k, values[best], std::max(s[kTemperature], kLeastTemperature), p);
      const auto top_k = static_cast<int64_t>(s[kTopK]);
      float border = 0.0f;
      if (top_k > 0 && top_k < k) border = nth_largest(p, k, top_k, room);
      if (s[kTopP] < 1.0f) border = std::max(border, nucleus(p, k, s[kTopP], border, room));
      out[at] = draw(p, k, std::max(border, s[kMinP]), s[kUniform]);
    }
  });
  team.sync();
}

}  // namespace bayard
