// Which kernels run: found once, or forced by name.
#include "dispatch.h"

#if defined(BAYARD_X86)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstring>

#include "bayard_cpu.h"
#include "ops.h"

extern "C" {
void bayard_fill_linear_scalar(KernelTable*);
void bayard_fill_vector_scalar(KernelTable*);
void bayard_fill_attention_scalar(KernelTable*);
#if defined(BAYARD_X86)
void bayard_fill_linear_avx2(KernelTable*);
void bayard_fill_vector_avx2(KernelTable*);
void bayard_fill_attention_avx2(KernelTable*);
void bayard_fill_linear_avx512(KernelTable*);
void bayard_fill_vector_avx512(KernelTable*);
void bayard_fill_attention_avx512(KernelTable*);
void bayard_fill_linear_amx(KernelTable*);
void bayard_fill_linear_avx512bf16(KernelTable*);
#endif
}

namespace bayard {
namespace {

bool always() { return true; }
void fill_scalar(KernelTable* t) {
  bayard_fill_linear_scalar(t);
  bayard_fill_vector_scalar(t);
  bayard_fill_attention_scalar(t);
}

#if defined(BAYARD_X86)
// The compiler's own check asks XGETBV too: a kernel that does not save the registers counts as not having them.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
void fill_avx2(KernelTable* t) {
  bayard_fill_linear_avx2(t);
  bayard_fill_vector_avx2(t);
  bayard_fill_attention_avx2(t);
}
// CPUID leaf 7: tiles, and their int8 and bf16 products. Linux gives the tile registers to a process that asks for them.
bool has_amx() {
#if defined(BAYARD_EMULATED_TILES)
  return has_avx512();  // a test's build, whose tiles are plain C++
#endif
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  if (!(d & (1u << 24)) || !(d & (1u << 25)) || !(d & (1u << 22))) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return allowed;
#else
  return false;
#endif
}
void fill_amx(KernelTable* t) {
  bayard_fill_linear_amx(t);
  bayard_fill_vector_avx512(t);
  bayard_fill_attention_avx512(t);
}
void fill_avx512(KernelTable* t) {
  bayard_fill_linear_avx512(t);
  if (__builtin_cpu_supports("avx512bf16")) bayard_fill_linear_avx512bf16(t);
  bayard_fill_vector_avx512(t);
  bayard_fill_attention_avx512(t);
}
#endif

struct Level {
  const char* name;
  bool (*available)();
  void (*fill)(KernelTable*);
};

// Best last.
const Level kLevels[] = {
    {"scalar", always, fill_scalar},
#if defined(BAYARD_X86)
    {"avx2", has_avx2, fill_avx2},
    {"avx512", has_avx512, fill_avx512},
    {"amx", has_amx, fill_amx},
#endif
};
const char* const kKnown[] = {"scalar", "avx2", "avx512", "amx"};

KernelTable g_table;
bool g_chosen = false;

void use(const Level& level) {
  KernelTable table = {};
  level.fill(&table);
  table.name = level.name;
  g_table = table;
  g_chosen = true;
}

}  // namespace

int choose_isa(const char* name) {
  if (!name || !*name) {
    for (const Level& level : kLevels)
      if (level.available()) use(level);
    return BAYARD_OK;
  }
  for (const Level& level : kLevels)
    if (std::strcmp(level.name, name) == 0) {
      if (!level.available()) return BAYARD_ISA_UNAVAILABLE;
      use(level);
      return BAYARD_OK;
    }
  for (const char* known : kKnown)
    if (std::strcmp(known, name) == 0) return BAYARD_ISA_UNAVAILABLE;
  return BAYARD_UNKNOWN_ISA;
}

bool isa_available(const char* name) {
  for (const Level& level : kLevels)
    if (std::strcmp(level.name, name) == 0) return level.available();
  return false;
}

const KernelTable& kernels() {
  if (!g_chosen) choose_isa(nullptr);
  return g_table;
}

}  // namespace bayard
