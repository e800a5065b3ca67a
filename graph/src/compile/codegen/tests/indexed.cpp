// Sums of rows by index on the processor, beside a loop: two matrices, of which each row's terms have other magnitudes, so that another
// order of additions is seen. One index in seven is no row.
#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

static float value_of(const unsigned short bits) { return __uint_as_float((unsigned int)bits << 16); }
static unsigned short bf16_of(const float x) { return (unsigned short)(__float_as_uint(bf16_round(x)) >> 16); }
static unsigned short bf16_add(const unsigned short x, const unsigned short y) { return bf16_of(value_of(x) + value_of(y)); }
static void set(float &to, const double x) { to = float(x); }
static void set(double &to, const double x) { to = x; }
static void set(unsigned short &to, const double x) { to = bf16_of(float(x)); }
static float sum_of(const float x, const float y) { return x + y; }
static double sum_of(const double x, const double y) { return x + y; }
static unsigned short sum_of(const unsigned short x, const unsigned short y) { return bf16_add(x, y); }

template <class INDEX, class VALUE>
using Summed = void(const INDEX *, unsigned long long, const VALUE *, VALUE *, unsigned long long, unsigned long long,
                    unsigned long long, unsigned long long);

// Two matrices of `rows` rows of `after` numbers, with as many terms as there are indices.
template <class INDEX, class VALUE>
static void sum(Summed<INDEX, VALUE> of, const std::vector<INDEX> &indices, const std::vector<VALUE> &terms, std::vector<VALUE> &sums,
                const unsigned int rows, const unsigned int after) {
  static Summed<INDEX, VALUE> *summed;
  static const std::vector<INDEX> *by;
  static const VALUE *from;
  static VALUE *to;
  static unsigned int num_rows, num_after;
  summed = of, by = &indices, from = terms.data(), to = sums.data(), num_rows = rows, num_after = after;
  launch((2u * rows + 3u) / 4u, [] { summed(by->data(), by->size(), from, to, 2, by->size(), num_rows, num_after); });
}

template <class INDEX, class VALUE>
static unsigned int count_of_differing(Summed<INDEX, VALUE> of, const unsigned int count, const unsigned int rows, const unsigned int after) {
  const INDEX none = INDEX(-1) > INDEX(0) ? INDEX(-1) : INDEX(~0ull >> 1);
  unsigned int random = 1u;
  const auto next = [&] { return (random = random * 1664525u + 1013904223u) >> 8; };
  std::vector<INDEX> indices(count);
  std::vector<VALUE> terms(2u * count * after), sums(2u * rows * after);
  for (INDEX &index : indices) index = next() % 7u == 0u ? none : INDEX(next() % rows);
  for (VALUE &term : terms) set(term, (int(next() % 2001u) - 1000) * double(1u << next() % 20u) * 0.1);
  for (VALUE &sum : sums) set(sum, next() % 100u);
  std::vector<VALUE> expected = sums;
  for (unsigned int matrix = 0; matrix < 2u; matrix++) {
    for (unsigned int at = 0; at < count; at++) {
      if (indices[at] == none) continue;
      VALUE *const to = &expected[(matrix * rows + (unsigned int)indices[at]) * after];
      for (unsigned int column = 0; column < after; column++) {
        to[column] = sum_of(to[column], terms[(matrix * count + at) * after + column]);
      }
    }
  }
  sum(of, indices, terms, sums, rows, after);
  unsigned int differ = 0u;
  for (unsigned int at = 0; at < sums.size(); at++) differ += std::memcmp(&sums[at], &expected[at], sizeof(VALUE)) != 0;
  if (differ != 0u) printf("%u indices, %u rows of %u: %u differ\n", count, rows, after, differ);
  return differ;
}

// Whether a process ends by a trap whose last index, of many that are row 0, is this; one that ends in another way ends this one too.
template <class INDEX, class VALUE>
static bool is_refused(Summed<INDEX, VALUE> of, const unsigned int count, const unsigned int rows, const unsigned int after, const INDEX last) {
  const pid_t child = fork();
  if (child == 0) {
    std::vector<INDEX> indices(count);
    std::vector<VALUE> terms(2u * count * after), sums(2u * rows * after);
    indices.back() = last;
    sum(of, indices, terms, sums, rows, after);
    _exit(0);
  }
  int status = 0;
  const bool has_ended = child > 0 && waitpid(child, &status, 0) == child;
  const bool is_trap = WIFSIGNALED(status) && (WTERMSIG(status) == SIGILL || WTERMSIG(status) == SIGTRAP);
  if (!has_ended || (status != 0 && !is_trap)) std::abort();
  return is_trap;
}
