#include "isa_avx2-inl.h"
#include "vector-inl.h"

extern "C" void bayard_fill_vector_avx2(KernelTable* table) { fill_vector(table); }
