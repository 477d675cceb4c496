#include "isa_avx512-inl.h"
#include "linear-inl.h"

extern "C" void bayard_fill_linear_avx512(KernelTable* table) { fill_linear(table); }
