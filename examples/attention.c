/* Causal grouped-query attention, forward and backward, from C. */
#include <stdio.h>
#include <stdlib.h>
#include <tilewise/tilewise.h>

enum { B = 2, S = 300, HQ = 6, HKV = 2, D = 64 };

static float q[B * S * HQ * D], k[B * S * HKV * D], v[B * S * HKV * D], o[B * S * HQ * D];
static float lse[B * HQ * S], d_o[B * S * HQ * D], dq[B * S * HQ * D];
static float dk[B * S * HKV * D], dv[B * S * HKV * D];

/* Stops the program with the library's message. */
static void check(tw_status status) {
  if (status == TW_OK) return;
  fprintf(stderr, "tilewise: %s\n", tw_last_error());
  exit(1);
}

/* Pseudo-random numbers in [-1, 1). */
static void fill(float* x, size_t n) {
  static uint32_t state = 1;
  size_t i;
  for (i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
}

static double sum(const float* x, size_t n) {
  double total = 0;
  while (n--) total += *x++;
  return total;
}

int main(void) {
  const int64_t queries[] = {B, S, HQ, D}, keys[] = {B, S, HKV, D}, rows[] = {B, HQ, S};
  const tw_tensor tq = tw_dense(q, TW_F32, 4, queries), to = tw_dense(o, TW_F32, 4, queries);
  const tw_tensor tk = tw_dense(k, TW_F32, 4, keys), tv = tw_dense(v, TW_F32, 4, keys);
  const tw_tensor tlse = tw_dense(lse, TW_F32, 3, rows), tdo = tw_dense(d_o, TW_F32, 4, queries);
  const tw_tensor tdq = tw_dense(dq, TW_F32, 4, queries);
  const tw_tensor tdk = tw_dense(dk, TW_F32, 4, keys), tdv = tw_dense(dv, TW_F32, 4, keys);
  tw_problem problem = tw_problem_init();
  tw_inputs in = tw_inputs_init();
  tw_outputs out = tw_outputs_init();
  tw_gradients grads = tw_gradients_init();
  tw_launch launch = tw_launch_init();
  tw_pass_info forward = tw_pass_info_init(), backward = tw_pass_info_init();
  tw_plan* plan;

  fill(q, B * S * HQ * D), fill(k, B * S * HKV * D), fill(v, B * S * HKV * D);
  fill(d_o, B * S * HQ * D);

  problem.batch = B, problem.seq_q = problem.seq_kv = S, problem.heads_q = HQ;
  problem.heads_kv = HKV, problem.head_dim = problem.head_dim_v = D, problem.causal = 1;
  check(tw_plan_create(&problem, TW_CPU, 0, NULL, &plan));
  puts(tw_plan_describe(plan));

  check(tw_plan_pass(plan, TW_FORWARD, &forward));
  check(tw_plan_pass(plan, TW_BACKWARD, &backward));
  launch.workspace_bytes = forward.workspace_bytes > backward.workspace_bytes
                               ? forward.workspace_bytes
                               : backward.workspace_bytes;
  void* memory = malloc(launch.workspace_bytes + 64);
  if (!memory) return 1;
  launch.workspace = (void*)(((uintptr_t)memory + 63) / 64 * 64);

  in.q = &tq, in.k = &tk, in.v = &tv;
  out.o = &to, out.lse = &tlse;
  check(tw_forward(plan, &in, &out, &launch));

  grads.o = &to, grads.lse = &tlse, grads.d_o = &tdo;
  grads.dq = &tdq, grads.dk = &tdk, grads.dv = &tdv;
  check(tw_backward(plan, &in, &grads, &launch));

  printf("sum O %.4f  dQ %.4f  dK %.4f  dV %.4f\n", sum(o, B * S * HQ * D), sum(dq, B * S * HQ * D),
         sum(dk, B * S * HKV * D), sum(dv, B * S * HKV * D));
  free(memory);
  tw_plan_destroy(plan);
  return 0;
}
