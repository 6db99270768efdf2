/* Transformer blocks on a processor: `block.h` for each instruction set, and the choice of one.
 *
 * Called from the Python modules here, which say what the arguments are. Nothing is
 * allocated here and nothing outlives a call, so threads may call side by side.
 */
#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FOUR 4
#define EIGHT 8
#define PADDED(n) (((n) + LANES - 1) / LANES * LANES)
#define TURNED(width) (12 * (size_t)(width) * (width)) /* floats of a block's matrices */
#define INLINE inline __attribute__((always_inline))

typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int32_t i4 __attribute__((vector_size(16)));

#define LARGER(vector, mask, a, b) \
  ((vector)(((mask)(a) & ((a) > (b))) | ((mask)(b) & ~((a) > (b)))))

static const int32_t places[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Weights in the order of `Block.weights`. */
enum {
  W_NORM1, B_NORM1, W_Q, B_Q, W_KV, B_KV, W_OUT, B_OUT, W_NORM2, B_NORM2, W_WIDE, B_WIDE, W_NARROW,
  B_NARROW, WEIGHTS
};

/* As `_Shape` in block.py. */
typedef struct {
  int windows, length, width, heads, head, first, every, asked;
  int tile;             /* windows that go through the block at a time */
  int saved_per_window; /* floats */
  int keep;             /* whether what was saved of each tile must stay */
  int attention_threshold, branch_threshold;
  float attention_scale, branch_scale, score_scale;
} shape_t;

#define MOST_KINDS 4

/* As `Steps` in tokens.py. */
typedef struct {
  int windows, steps, width, kinds; /* of tokens */
  int sizes[MOST_KINDS];            /* of what each kind is made from */
  int threshold;
  float scale;
} steps_t;

/* Those who share a tile. */
typedef struct {
  int worker, workers;
  int room;     /* floats that each needs for attention */
  int *arrived; /* how often anyone met the others */
} crew_t;

#define OWN(crew, n) ((n) * (crew)->worker / (crew)->workers)
#define OWN_END(crew, n) ((n) * ((crew)->worker + 1) / (crew)->workers)

/* Wait until all have come so far. They run at once, so it is short. */
static inline void meet(crew_t *crew) {
  if (crew->workers == 1) return;
  int until = __atomic_add_fetch(crew->arrived, 1, __ATOMIC_ACQ_REL) + crew->workers - 1;
  until -= until % crew->workers;
  for (int turns = 0; __atomic_load_n(crew->arrived, __ATOMIC_ACQUIRE) < until; turns++)
    if (turns > 10000) sched_yield(); /* someone else has the core */
}

/* Where the random words of window b begin; none without dropout. */
static inline void own_words(const shape_t *s, const int16_t *const *words, int b,
                             const int16_t **own) {
  size_t rows = (size_t)b * s->asked;
  own[0] = words[0] ? words[0] + rows * s->heads * s->length : NULL;
  own[1] = words[1] ? words[1] + rows * s->width : NULL;
  own[2] = words[2] ? words[2] + rows * s->width : NULL;
}

/* The first asked position that looks at token j, counted among the asked. */
static inline int first_asked(const shape_t *s, int j) {
  return j <= s->first ? 0 : (j - s->first + s->every - 1) / s->every;
}

#define NAME(name) name##_any
#define LANES 4
#define ROWS 4
#define VECTORS 2
#include "block.h"
#undef NAME
#undef LANES
#undef ROWS
#undef VECTORS

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SEVERAL
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_avx2
#define LANES 8
#define ROWS 6
#define VECTORS 2
#include "block.h"
#undef NAME
#undef LANES
#undef ROWS
#undef VECTORS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define NAME(name) name##_avx512
#define LANES 16
#define ROWS 6
#define VECTORS 4
#include "block.h"
#undef NAME
#undef LANES
#undef ROWS
#undef VECTORS
#pragma GCC pop_options
#endif

/* Which instruction set is the best here: 0 any processor's, 1 AVX2, 2 AVX-512. */
int rcdt_level(void) {
#ifdef SEVERAL
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

#ifdef SEVERAL
#define CHOOSE(function, ...)                    \
  do {                                           \
    if (level == 2)                              \
      function##_avx512(__VA_ARGS__);            \
    else if (level == 1)                         \
      function##_avx2(__VA_ARGS__);              \
    else                                         \
      function##_any(__VA_ARGS__);               \
  } while (0)
#else
#define CHOOSE(function, ...) ((void)level, function##_any(__VA_ARGS__))
#endif

void rcdt_forward(int level, const shape_t *s, const float *const *w, const float *x,
                  const int16_t *const *words, float *saved, float *scratch, float *y) {
  CHOOSE(forward, s, w, x, words, saved, scratch, y);
}

void rcdt_backward(int level, const shape_t *s, const float *const *w, const float *x,
                   const int16_t *const *words, const float *saved, const float *grad,
                   float *scratch, float *g_x, float *const *g) {
  CHOOSE(backward, s, w, x, words, saved, grad, scratch, g_x, g);
}

void rcdt_embed(int level, const steps_t *s, const float *const *inputs, const int64_t *times,
                const float *const *w, const float *table, const int16_t *words, float *tokens,
                float *x) {
  CHOOSE(embed, s, inputs, times, w, table, words, tokens, x);
}

void rcdt_embed_backward(int level, const steps_t *s, const float *const *inputs,
                         const int64_t *times, const float *const *w, const int16_t *words,
                         const float *tokens, const float *grad, float *scratch, float *const *g,
                         float *g_table) {
  CHOOSE(embed_backward, s, inputs, times, w, words, tokens, grad, scratch, g, g_table);
}

/* ---- acting, on several cores ------------------------------------------------------------- */

/* OpenMP's entries in the library that torch uses: its threads are there and awake. */
typedef void (*team_t)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*count_t)(void);

typedef struct {
  int level, layers, next, workers, arrived, room;
  count_t team_size;
  const steps_t *e;
  const shape_t *s;
  const float *const *inputs;
  const int64_t *times;
  const float *const *w;
  const float *table;
  float *scratch, *out;
  size_t scratch_each;
} acting_t;

/* One worker. A single tile is shared by all; of several, each worker takes one after the other. */
static void act(void *data) {
  acting_t *a = data;
  const int level = a->level, windows = a->s->windows, tile = a->s->tile;
  int worker = __atomic_fetch_add(&a->workers, 1, __ATOMIC_RELAXED);
  if (windows <= tile) {
    crew_t crew = {worker, a->team_size ? a->team_size() : 1, a->room, &a->arrived};
    CHOOSE(last_states, a->e, a->s, &crew, a->layers, 0, windows, a->inputs, a->times, a->w,
           a->table, a->scratch, a->out);
    return;
  }
  float *scratch = a->scratch + worker * a->scratch_each;
  crew_t alone = {0, 1, 0, NULL};
  for (;;) {
    int b = __atomic_fetch_add(&a->next, tile, __ATOMIC_RELAXED);
    if (b >= windows) return;
    CHOOSE(last_states, a->e, a->s, &alone, a->layers, b, windows - b < tile ? windows - b : tile,
           a->inputs, a->times, a->w, a->table, scratch, a->out);
  }
}

void rcdt_last_states(int level, const steps_t *e, const shape_t *s, int layers,
                      const float *const *inputs, const int64_t *times, const float *const *w,
                      const float *table, float *scratch, size_t scratch_each, int room,
                      team_t team, count_t team_size, int threads, float *out) {
  acting_t acting = {.level = level, .layers = layers, .room = room, .e = e, .s = s,
                     .inputs = inputs, .times = times, .w = w, .table = table,
                     .scratch = scratch, .out = out, .scratch_each = scratch_each};
  if (team && team_size && threads > 1) {
    acting.team_size = team_size;
    team(act, &acting, threads, 0);
  } else
    act(&acting);
}

/* Whether all are rows of a table of so many. */
int rcdt_within(const int64_t *rows, int64_t n, int64_t table) {
  int64_t beyond = 0;
  for (int64_t i = 0; i < n; i++) beyond |= rows[i] | (table - 1 - rows[i]);
  return beyond >= 0; /* the sign of any that is negative stays */
}

/* ---- batches ------------------------------------------------------------------------------ */

#define AHEAD 8
#define LINE 64

/* Runs of consecutive rows of several arrays: `rows` of each from `first` on, zeros beyond the
 * `there` that exist. What comes soon is fetched early, since each run is somewhere else. */
void rcdt_runs(int arrays, const char *const *from, const int64_t *row_bytes, const int64_t *rows,
               int64_t windows, const int64_t *first, const int64_t *there, char *const *to) {
  for (int64_t w = 0; w < windows; w++)
    for (int a = 0; a < arrays; a++) {
      const int64_t bytes = row_bytes[a], whole = rows[a] * bytes;
      if (w + AHEAD < windows) {
        const char *soon = from[a] + first[w + AHEAD] * bytes;
        for (int64_t at = 0; at < whole; at += LINE) __builtin_prefetch(soon + at);
      }
      const int64_t some = there[w] < rows[a] ? there[w] : rows[a];
      const int64_t real = some > 0 ? some * bytes : 0;
      char *out = to[a] + w * whole;
      memcpy(out, from[a] + first[w] * bytes, real);
      memset(out + real, 0, whole - real);
    }
}
