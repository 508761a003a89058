/* The C header used from C, for test_c_api.cpp: the whole path from a problem to gradients. */
#include "c_face.h"

#include <stdlib.h>

tw_status c_attention(const CAttention* a) {
  const int64_t queries[] = {a->batch, a->seq, a->heads, a->dim},
                rows[] = {a->batch, a->heads, a->seq};
  const tw_tensor q = tw_dense(a->q, TW_F32, 4, queries), k = tw_dense(a->k, TW_F32, 4, queries);
  const tw_tensor v = tw_dense(a->v, TW_F32, 4, queries), o = tw_dense(a->o, TW_F32, 4, queries);
  const tw_tensor lse = tw_dense(a->lse, TW_F32, 3, rows),
                  d_o = tw_dense(a->d_o, TW_F32, 4, queries);
  const tw_tensor dq = tw_dense(a->dq, TW_F32, 4, queries),
                  dk = tw_dense(a->dk, TW_F32, 4, queries);
  const tw_tensor dv = tw_dense(a->dv, TW_F32, 4, queries);
  tw_problem problem = tw_problem_init();
  tw_inputs in = tw_inputs_init();
  tw_outputs out = tw_outputs_init();
  tw_gradients grads = tw_gradients_init();
  tw_launch launch = tw_launch_init();
  tw_pass_info fwd = tw_pass_info_init(), bwd = tw_pass_info_init();
  tw_plan* plan = NULL;
  void* memory;
  tw_status status;

  problem.batch = a->batch;
  problem.seq_q = problem.seq_kv = a->seq;
  problem.heads_q = problem.heads_kv = a->heads;
  problem.head_dim = problem.head_dim_v = a->dim;
  problem.causal = 1;
  status = tw_plan_create(&problem, TW_CPU, 0, NULL, &plan);
  if (status == TW_OK) status = tw_plan_pass(plan, TW_FORWARD, &fwd);
  if (status == TW_OK) status = tw_plan_pass(plan, TW_BACKWARD, &bwd);
  if (status != TW_OK) return status;
  launch.workspace_bytes =
      fwd.workspace_bytes > bwd.workspace_bytes ? fwd.workspace_bytes : bwd.workspace_bytes;
  memory = malloc(launch.workspace_bytes + 64);
  launch.workspace = (void*)(((uintptr_t)memory + 63) / 64 * 64);

  in.q = &q, in.k = &k, in.v = &v;
  out.o = &o, out.lse = &lse;
  status = tw_forward(plan, &in, &out, &launch);
  grads.o = &o, grads.lse = &lse, grads.d_o = &d_o;
  grads.dq = &dq, grads.dk = &dk, grads.dv = &dv;
  if (status == TW_OK) status = tw_backward(plan, &in, &grads, &launch);
  free(memory);
  tw_plan_destroy(plan);
  return status;
}
