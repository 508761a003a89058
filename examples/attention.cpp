// Causal grouped-query attention, forward and backward, from C++17.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include <tilewise/tilewise.hpp>

namespace {

// Stops the program with the library's message.
void check(const tilewise::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "tilewise: %s\n", status.message().c_str());
  std::exit(1);
}

double sum(const std::vector<float>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0);
}

}  // namespace

int main() {
  using namespace tilewise;
  constexpr int b = 2, s = 300, hq = 6, hkv = 2, d = 64;
  constexpr int queries = b * s * hq * d, keys = b * s * hkv * d;
  std::vector<float> q(queries), k(keys), v(keys), o(queries), lse(b * hq * s);
  std::vector<float> d_o(queries), dq(queries), dk(keys), dv(keys);
  std::mt19937 random(1);
  for (auto* x : {&q, &k, &v, &d_o})
    for (float& value : *x) value = std::normal_distribution<float>()(random);

  Problem problem;
  problem.batch = b, problem.seq_q = problem.seq_kv = s;
  problem.heads_q = hq, problem.heads_kv = hkv, problem.head_dim = problem.head_dim_v = d;
  problem.mask.causal = true;
  const Expected<Plan> plan = make_plan(problem);
  check(plan.status());
  std::puts(plan->describe().c_str());

  const auto like_q = [](std::vector<float>& x) {
    return make_tensor(x.data(), DType::kF32, b, s, hq, d);
  };
  const auto like_k = [](std::vector<float>& x) {
    return make_tensor(x.data(), DType::kF32, b, s, hkv, d);
  };
  Inputs in;
  in.q = like_q(q), in.k = like_k(k), in.v = like_k(v);
  const Outputs out{like_q(o), make_tensor(lse.data(), DType::kF32, b, hq, s)};
  const Workspace forward_space(plan->forward);
  check(forward(*plan, in, out, forward_space.launch()));

  Gradients grads;
  grads.o = out.o, grads.lse = out.lse, grads.d_o = like_q(d_o);
  grads.dq = like_q(dq), grads.dk = like_k(dk), grads.dv = like_k(dv);
  const Workspace backward_space(plan->backward);
  check(backward(*plan, in, grads, backward_space.launch()));

  std::printf("sum O %.4f  dQ %.4f  dK %.4f  dV %.4f\n", sum(o), sum(dq), sum(dk), sum(dv));
}
