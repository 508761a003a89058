/* What test_c_api.cpp hands to the C side: dense f32 arrays, causal, as many kv heads as heads. */
#ifndef TILEWISE_TESTS_C_FACE_H_
#define TILEWISE_TESTS_C_FACE_H_

#include "tilewise/tilewise.h"

typedef struct CAttention {
  int64_t batch, seq, heads, dim;
  float *q, *k, *v, *o, *lse, *d_o, *dq, *dk, *dv;
} CAttention;

#ifdef __cplusplus
extern "C"
#endif
    tw_status
    c_attention(const CAttention* a);

#endif
