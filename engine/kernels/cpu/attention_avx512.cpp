#include "isa_avx512-inl.h"
#include "attention-inl.h"

extern "C" void bayard_fill_attention_avx512(KernelTable* table) { fill_attention(table); }
