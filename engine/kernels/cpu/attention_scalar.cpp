#include "isa_scalar-inl.h"
#include "attention-inl.h"

extern "C" void bayard_fill_attention_scalar(KernelTable* table) { fill_attention(table); }
