#include "isa_scalar-inl.h"
#include "vector-inl.h"

extern "C" void bayard_fill_vector_scalar(KernelTable* table) { fill_vector(table); }
