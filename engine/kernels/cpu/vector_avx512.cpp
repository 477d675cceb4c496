#include "isa_avx512-inl.h"
#include "vector-inl.h"

extern "C" void bayard_fill_vector_avx512(KernelTable* table) { fill_vector(table); }
