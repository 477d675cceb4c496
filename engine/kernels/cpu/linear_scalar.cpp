#include "isa_scalar-inl.h"
#include "linear-inl.h"

extern "C" void bayard_fill_linear_scalar(KernelTable* table) { fill_linear(table); }
