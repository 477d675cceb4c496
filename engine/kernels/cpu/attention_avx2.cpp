#include "isa_avx2-inl.h"
#include "attention-inl.h"

extern "C" void bayard_fill_attention_avx2(KernelTable* table) { fill_attention(table); }
