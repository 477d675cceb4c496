#include "isa_avx2-inl.h"
#include "linear-inl.h"

extern "C" void bayard_fill_linear_avx2(KernelTable* table) { fill_linear(table); }
