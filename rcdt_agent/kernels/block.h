/* The transformer block on one processor core, for one instruction set.
 *
 * `kernels.c` includes this file once for each instruction set that it serves, with NAME() giving
 * every function a name of its own, LANES values to a vector, and ROWS times VECTORS the size of a
 * patch of a product that its registers hold.
 *
 * Shapes: B windows of L tokens, R = B L rows, D wide, H heads of d = D / H. A block may answer at
 * `asked` positions of each window only: first, first + every, ...; A = B asked rows.
 */

/* ---- vectors ------------------------------------------------------------------------------ */

/* Of LANES values, wherever in memory. */
typedef float NAME(floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(ints) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int16_t NAME(shorts) __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
#define vf NAME(floats)
#define vi NAME(ints)
#define vs NAME(shorts)
#define PLACES (*(const vi *)places)

static INLINE vf NAME(load)(const float *at) { return *(const vf *)at; }

static INLINE void NAME(store)(float *at, vf value) { *(vf *)at = value; }

static INLINE vf NAME(all)(float value) { return value - (vf){0}; }

static INLINE vf NAME(pick)(vi mask, vf yes, vf no) {
  return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

static INLINE float NAME(sum)(vf values) {
#if LANES == 16
  union { vf whole; v8 half[2]; } a = {values};
  union { v8 whole; v4 half[2]; } b = {a.half[0] + a.half[1]};
  v4 c = b.half[0] + b.half[1];
#elif LANES == 8
  union { vf whole; v4 half[2]; } b = {values};
  v4 c = b.half[0] + b.half[1];
#else
  vf c = values;
#endif
  return (c[0] + c[2]) + (c[1] + c[3]);
}

static INLINE float NAME(largest)(vf values) {
#if LANES == 16
  union { vf whole; v8 half[2]; } a = {values};
  union { v8 whole; v4 half[2]; } b = {LARGER(v8, i8, a.half[0], a.half[1])};
  v4 c = LARGER(v4, i4, b.half[0], b.half[1]);
#elif LANES == 8
  union { vf whole; v4 half[2]; } b = {values};
  v4 c = LARGER(v4, i4, b.half[0], b.half[1]);
#else
  vf c = values;
#endif
  float left = c[0] > c[2] ? c[0] : c[2], right = c[1] > c[3] ? c[1] : c[3];
  return left > right ? left : right;
}

/* e^x by x = n log 2 + r; the polynomial is Taylor's, |r| <= 0.35. Below -87 it is e^-87. */
static INLINE vf NAME(exp)(vf x) {
  const vf lowest = NAME(all)(-87.0f), round = NAME(all)(12582912.0f); /* 1.5 * 2^23 */
  x = NAME(pick)(x < lowest, lowest, x); /* NaN stays */
  vf n = (x * 1.44269504f + round) - round;
  vf r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vf p = 1.0f / 720 * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  vi power = (__builtin_convertvector(n, vi) + 127) << 23;
  return p * (vf)power;
}

/* The normal distribution function of x, and e^(-x^2 / 2) in `bell`.
 * erf by Abramowitz and Stegun 7.1.26: the error is below 1.5e-7. */
static INLINE vf NAME(normal)(vf x, vf *bell) {
  vf size = (vf)((vi)x & 0x7fffffff);
  vf t = 1.0f / (1.0f + size * (0.3275911f * 0.70710678f));
  vf p = 1.061405429f * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  *bell = NAME(exp)(-0.5f * x * x);
  vf tail = 0.5f * p * t * *bell;
  return NAME(pick)(x > 0.0f, 1.0f - tail, tail);
}

/* Which of 16 random words let a value pass. */
static INLINE vi NAME(kept)(const int16_t *words, int threshold) {
  return __builtin_convertvector(*(const vs *)words, vi) >= threshold;
}

/* ---- products ----------------------------------------------------------------------------- */

/* A patch of C = A B (`add`: C + A B); A's element (r, k) is a[r a_row + k a_step]. */
static INLINE void NAME(patch)(int rows, int vectors, int depth, const float *a, size_t a_row,
                               size_t a_step, const float *b, size_t b_row, int add, float *c,
                               size_t c_row) {
  vf sums[ROWS][VECTORS];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) sums[r][v] = (vf){0};
  for (int k = 0; k < depth; k++, a += a_step, b += b_row) {
    vf right[VECTORS];
    for (int v = 0; v < vectors; v++) right[v] = NAME(load)(b + v * LANES);
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < vectors; v++) sums[r][v] += a[r * a_row] * right[v];
  }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) {
      float *out = c + r * c_row + v * LANES;
      if (add) sums[r][v] += NAME(load)(out);
      NAME(store)(out, sums[r][v]);
    }
}

/* Some columns of a product, patch by patch; the compiler makes one program for each height. */
static INLINE void NAME(columns)(int vectors, int m, int k, const float *a, size_t a_row,
                                 size_t a_step, const float *b, size_t b_row, int add, float *c,
                                 size_t c_row) {
#define PATCH(rows) NAME(patch)(rows, vectors, k, a, a_row, a_step, b, b_row, add, c, c_row)
  for (; m >= ROWS; m -= ROWS, a += ROWS * a_row, c += ROWS * c_row) PATCH(ROWS);
  switch (m) {
    case 5: PATCH(5 < ROWS ? 5 : 1); break;
    case 4: PATCH(4 < ROWS ? 4 : 1); break;
    case 3: PATCH(3 < ROWS ? 3 : 1); break;
    case 2: PATCH(2 < ROWS ? 2 : 1); break;
    case 1: PATCH(1); break;
  }
#undef PATCH
}

/* C (m, n) = A B or C + A B, n a multiple of LANES. */
static INLINE void NAME(product)(int m, int n, int k, const float *a, size_t a_row, size_t a_step,
                                 const float *b, size_t b_row, int add, float *c, size_t c_row) {
  int j = 0;
  for (; j + VECTORS * LANES <= n; j += VECTORS * LANES)
    NAME(columns)(VECTORS, m, k, a, a_row, a_step, b + j, b_row, add, c + j, c_row);
  for (; j < n; j += LANES)
    NAME(columns)(1, m, k, a, a_row, a_step, b + j, b_row, add, c + j, c_row);
}

/* A (m, k) times B (k, n). */
static void NAME(times)(int m, int n, int k, const float *a, size_t a_row, const float *b,
                        size_t b_row, int add, float *c, size_t c_row) {
  if (add)
    NAME(product)(m, n, k, a, a_row, 1, b, b_row, 1, c, c_row);
  else
    NAME(product)(m, n, k, a, a_row, 1, b, b_row, 0, c, c_row);
}

/* C (m, n) += A^T B, where A is (k, m) and B (k, n): gradients of weights. */
static void NAME(add_outer)(int m, int n, int k, const float *a, size_t a_row, const float *b,
                            size_t b_row, float *c, size_t c_row) {
  NAME(product)(m, n, k, a, 1, a_row, b, b_row, 1, c, c_row);
}

/* out (n, m) = A^T of A (m, n), both sizes multiples of LANES. */
static void NAME(transpose)(const float *a, size_t a_row, int m, int n, float *out,
                            size_t out_row) {
#if LANES == 16
  const vi evens = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
  const vi odds = evens + 1;
  const vi low2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}, high2 = low2 + 2;
  const vi low4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27}, high4 = low4 + 4;
  const vi low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, high8 = low8 + 8;
  for (int i = 0; i < m; i += LANES)
    for (int j = 0; j < n; j += LANES) {
      vf x[LANES], y[LANES];
      for (int r = 0; r < LANES; r++) x[r] = NAME(load)(a + (i + r) * a_row + j);
      for (int r = 0; r < LANES; r += 2)
        y[r] = __builtin_shuffle(x[r], x[r + 1], evens),
        y[r + 1] = __builtin_shuffle(x[r], x[r + 1], odds);
      for (int r = 0; r < LANES; r += 4)
        for (int e = r; e < r + 2; e++)
          x[e] = __builtin_shuffle(y[e], y[e + 2], low2),
          x[e + 2] = __builtin_shuffle(y[e], y[e + 2], high2);
      for (int r = 0; r < LANES; r += 8)
        for (int e = r; e < r + 4; e++)
          y[e] = __builtin_shuffle(x[e], x[e + 4], low4),
          y[e + 4] = __builtin_shuffle(x[e], x[e + 4], high4);
      for (int e = 0; e < 8; e++) {
        NAME(store)(out + (j + e) * out_row + i, __builtin_shuffle(y[e], y[e + 8], low8));
        NAME(store)(out + (j + e + 8) * out_row + i, __builtin_shuffle(y[e], y[e + 8], high8));
      }
    }
#else
  for (int i = 0; i < m; i += 8)
    for (int j = 0; j < n; j++)
      for (int r = i; r < i + 8 && r < m; r++) out[j * out_row + r] = a[r * a_row + j];
#endif
}

/* ---- layer norm --------------------------------------------------------------------------- */

static INLINE void NAME(moments)(const float *x, int width, float *mean, float *inverse) {
  vf total = {0}, squares = {0};
  for (int c = 0; c < width; c += LANES) total += NAME(load)(x + c);
  *mean = NAME(sum)(total) / width;
  for (int c = 0; c < width; c += LANES) {
    vf off = NAME(load)(x + c) - *mean;
    squares += off * off;
  }
  *inverse = 1.0f / sqrtf(NAME(sum)(squares) / width + 1e-5f);
}

static void NAME(norm_row)(const float *x, const float *weight, const float *bias, int width,
                           float *out) {
  float mean, inverse;
  NAME(moments)(x, width, &mean, &inverse);
  for (int c = 0; c < width; c += LANES)
    NAME(store)(out + c, (NAME(load)(x + c) - mean) * inverse * NAME(load)(weight + c) +
                             NAME(load)(bias + c));
}

static void NAME(norm)(const float *x, const float *weight, const float *bias, int rows, int width,
                       float *out) {
  for (int r = 0; r < rows; r++)
    NAME(norm_row)(x + (size_t)r * width, weight, bias, width, out + (size_t)r * width);
}

/* Gradient of a row; those of weight and bias are added up. `out` may be `grad`. */
static void NAME(norm_row_backward)(const float *x, const float *weight, const float *grad,
                                    int width, float *g_weight, float *g_bias, float *out) {
  float mean, inverse;
  NAME(moments)(x, width, &mean, &inverse);
  vf along = {0}, total = {0};
  for (int c = 0; c < width; c += LANES) {
    vf normal = (NAME(load)(x + c) - mean) * inverse, g = NAME(load)(grad + c);
    NAME(store)(g_weight + c, NAME(load)(g_weight + c) + g * normal);
    NAME(store)(g_bias + c, NAME(load)(g_bias + c) + g);
    g *= NAME(load)(weight + c);
    along += g * normal;
    total += g;
  }
  float slope = NAME(sum)(along) / width, level = NAME(sum)(total) / width;
  for (int c = 0; c < width; c += LANES) {
    vf normal = (NAME(load)(x + c) - mean) * inverse;
    vf g = NAME(load)(grad + c) * NAME(load)(weight + c);
    NAME(store)(out + c, (g - level - normal * slope) * inverse);
  }
}

/* ---- residual branches -------------------------------------------------------------------- */

static INLINE void NAME(add_row)(float *to, const float *from, int width) {
  for (int c = 0; c < width; c += LANES)
    NAME(store)(to + c, NAME(load)(to + c) + NAME(load)(from + c));
}

/* out = x + scale mask (branch + bias), one row. */
static INLINE void NAME(join_row)(const float *x, const float *branch, const float *bias,
                                  const int16_t *words, int threshold, float scale, int width,
                                  float *out) {
  for (int c = 0; c < width; c += LANES) {
    vf value = NAME(load)(branch + c) + NAME(load)(bias + c);
    if (words) value = (vf)((vi)(value * scale) & NAME(kept)(words + c, threshold));
    NAME(store)(out + c, NAME(load)(x + c) + value);
  }
}

/* out = scale mask grad, and its sum over rows added to `g_bias`. */
static void NAME(join_backward)(const float *grad, const int16_t *words, int threshold,
                                float scale, int rows, int width, float *g_bias, float *out) {
  for (int r = 0; r < rows; r++, grad += width, out += width) {
    for (int c = 0; c < width; c += LANES) {
      vf value = NAME(load)(grad + c);
      if (words) value = (vf)((vi)(value * scale) & NAME(kept)(words + c, threshold));
      NAME(store)(out + c, value);
      NAME(store)(g_bias + c, NAME(load)(g_bias + c) + value);
    }
    if (words) words += width;
  }
}

/* ---- GELU --------------------------------------------------------------------------------- */

static void NAME(gelu)(const float *x, const float *bias, int rows, int width, float *out) {
  for (int r = 0; r < rows; r++, x += width, out += width)
    for (int c = 0; c < width; c += LANES) {
      vf bell, value = NAME(load)(x + c) + NAME(load)(bias + c);
      NAME(store)(out + c, value * NAME(normal)(value, &bell));
    }
}

/* The activation again, and `grad` times its slope in place; sums over rows added to `g_bias`. */
static void NAME(gelu_backward)(const float *x, const float *bias, int rows, int width,
                                float *grad, float *active, float *g_bias) {
  for (int r = 0; r < rows; r++, x += width, grad += width, active += width)
    for (int c = 0; c < width; c += LANES) {
      vf bell, value = NAME(load)(x + c) + NAME(load)(bias + c);
      vf share = NAME(normal)(value, &bell);
      vf g = NAME(load)(grad + c) * (share + value * bell * 0.39894228f);
      NAME(store)(active + c, value * share);
      NAME(store)(grad + c, g);
      NAME(store)(g_bias + c, NAME(load)(g_bias + c) + g);
    }
}

/* ---- attention ---------------------------------------------------------------------------- */

/* `n` rows of d values, padded with zeros to whole vectors; a bias added (if any), then scaled. */
static INLINE void NAME(fetch)(const float *from, int stride, const float *bias, float scale, int n,
                               int d, float *to) {
  int padded = PADDED(d);
  for (int i = 0; i < n; i++, from += stride, to += padded)
    for (int c = 0; c < padded; c += LANES)
      if (c + LANES <= d) {
        vf value = NAME(load)(from + c);
        if (bias) value += NAME(load)(bias + c);
        NAME(store)(to + c, value * scale);
      } else
        for (int e = c; e < c + LANES; e++)
          to[e] = e < d ? (from[e] + (bias ? bias[e] : 0.0f)) * scale : 0.0f;
}

/* Products of FOUR queries or gradients (rows of `q`) with keys or values (columns of `k`). */
static INLINE void NAME(four_products)(const float *q, int q_stride, const float *k, int k_stride,
                                       int d, vf *out) {
  vf a = {0}, b = {0}, c = {0}, e = {0};
  for (int i = 0; i < d; i++) {
    vf key = NAME(load)(k + (size_t)i * k_stride);
    a += q[i] * key;
    b += q[q_stride + i] * key;
    c += q[2 * q_stride + i] * key;
    e += q[3 * q_stride + i] * key;
  }
  out[0] = a, out[1] = b, out[2] = c, out[3] = e;
}

/* Sums of rows of `v` (n of them) with the coefficients of FOUR rows of `p`. */
static INLINE void NAME(four_sums)(const float *p, int p_stride, const float *v, int v_stride,
                                   int n, vf *out) {
  vf a = {0}, b = {0}, c = {0}, e = {0};
  for (int j = 0; j < n; j++) {
    vf value = NAME(load)(v + (size_t)j * v_stride);
    a += p[j] * value;
    b += p[p_stride + j] * value;
    c += p[2 * p_stride + j] * value;
    e += p[3 * p_stride + j] * value;
  }
  out[0] = a, out[1] = b, out[2] = c, out[3] = e;
}

/* Softmax over places 0..last of a row of `end` scores, in place; zero behind. */
static INLINE void NAME(softmax)(float *p, int last, int end) {
  vf most = NAME(all)(-INFINITY), total = {0};
  for (int j = 0; j < end; j += LANES) {
    vf score = NAME(pick)(PLACES + j <= last, NAME(load)(p + j), NAME(all)(-INFINITY));
    most = NAME(pick)(score > most, score, most);
  }
  float top = NAME(largest)(most);
  for (int j = 0; j < end; j += LANES) {
    vf value = NAME(exp)(NAME(load)(p + j) - top);
    value = (vf)((vi)value & (PLACES + j <= last));
    NAME(store)(p + j, value);
    total += value;
  }
  float share = 1.0f / NAME(sum)(total);
  for (int j = 0; j < end; j += LANES) NAME(store)(p + j, NAME(load)(p + j) * share);
}

/* Attention weights of four queries from `row` on, into p (4 rows); zero where not allowed. */
static INLINE void NAME(four_weights)(const shape_t *s, const float *q, const float *keys,
                                      int k_stride, int row, float *p) {
  int stride = PADDED(s->length);
  int end = PADDED(s->first + (row + 3) * s->every + 1);
  if (end > stride) end = stride;
  for (int j = 0; j < end; j += LANES) {
    vf scores[FOUR];
    NAME(four_products)(q, PADDED(s->head), keys + j, k_stride, s->head, scores);
    for (int r = 0; r < FOUR; r++) NAME(store)(p + r * stride + j, scores[r]);
  }
  for (int r = 0; r < FOUR; r++, p += stride) {
    NAME(softmax)(p, s->first + (row + r) * s->every, end);
    for (int j = end; j < stride; j += LANES) NAME(store)(p + j, NAME(all)(0.0f));
  }
}

/* Clears what dropout takes from four rows of attention weights and scales the rest. */
static INLINE void NAME(drop_four)(const shape_t *s, const int16_t *words, int rows, float *p) {
  int stride = PADDED(s->length);
  for (int r = 0; r < rows; r++)
    for (int j = 0; j < stride; j += LANES) {
      vf value = NAME(load)(p + r * stride + j) * s->attention_scale;
      vi mask = NAME(kept)(words + r * s->length + j, s->attention_threshold);
      NAME(store)(p + r * stride + j, (vf)((vi)value & mask));
    }
}

/* mixed (A, D) from q (A, D) and kv (R, 2 D) of some windows, biases not yet added; some heads. */
static void NAME(attend)(const shape_t *s, int windows, int first_head, int end_head,
                         const float *q, const float *kv, const float *b_q, const float *b_kv,
                         const int16_t *words, float *scratch, float *mixed) {
  const int D = s->width, d = s->head, padded = PADDED(d), asked = s->asked;
  const int length = s->length, room = PADDED(length);
  float *queries = scratch, *values = queries + (asked + FOUR) * padded;
  float *keys = values + room * padded, *columns = keys + room * padded;
  float *p = columns + room * padded;
  memset(queries, 0, sizeof(float) * (p - queries));
  for (int b = 0; b < windows; b++)
    for (int h = first_head; h < end_head; h++) {
      const float *own = kv + (size_t)b * length * 2 * D + h * d;
      NAME(fetch)(q + (size_t)b * asked * D + h * d, D, b_q + h * d, s->score_scale, asked, d,
                  queries);
      NAME(fetch)(own, 2 * D, NULL, 1.0f, length, d, keys);
      NAME(transpose)(keys, padded, room, padded, columns, room);
      NAME(fetch)(own + D, 2 * D, b_kv + D + h * d, 1.0f, length, d, values);
      for (int row = 0; row < asked; row += FOUR) {
        int rows = asked - row < FOUR ? asked - row : FOUR;
        int seen = s->first + (row + rows - 1) * s->every + 1;
        NAME(four_weights)(s, queries + row * padded, columns, room, row, p);
        if (words) {
          size_t pair = (size_t)(b * s->heads + h) * asked + row;
          NAME(drop_four)(s, words + pair * length, rows, p);
        }
        for (int c = 0; c < padded; c += LANES) {
          vf sums[FOUR];
          NAME(four_sums)(p, room, values + c, padded, seen, sums);
          for (int r = 0; r < rows; r++) {
            float *out = mixed + ((size_t)b * asked + row + r) * D + h * d + c;
            if (c + LANES <= d)
              NAME(store)(out, sums[r]);
            else
              for (int e = 0; e < d - c; e++) out[e] = sums[r][e];
          }
        }
      }
    }
}

/* Stores some values of a row, and adds them to a bias' gradient. */
static INLINE void NAME(put)(vf value, int room, float *out, float *g_bias) {
  if (room >= LANES) {
    NAME(store)(out, value);
    NAME(store)(g_bias, NAME(load)(g_bias) + value);
  } else
    for (int e = 0; e < room; e++) out[e] = value[e], g_bias[e] += value[e];
}

/* Gradients g_q (A, D) and g_kv (R, 2 D) of `attend` from that of mixed. A bias of the keys shifts
 * all scores of a query alike: it cannot matter, and its gradient is zero. */
static void NAME(attend_backward)(const shape_t *s, int windows, const float *q, const float *kv,
                                  const float *b_q, const float *b_kv, const int16_t *words,
                                  const float *g_mixed, float *scratch, float *g_q, float *g_kv,
                                  float *g_b_q, float *g_b_kv) {
  const int D = s->width, d = s->head, padded = PADDED(d), asked = s->asked;
  const int length = s->length, room = PADDED(length), rows4 = (asked + 3) / FOUR * FOUR;
  float *queries = scratch, *grads = queries + rows4 * padded, *values = grads + rows4 * padded;
  float *keys = values + room * padded, *value_columns = keys + room * padded;
  float *key_columns = value_columns + room * padded, *p = key_columns + room * padded;
  float *dropped = p + rows4 * room, *slopes = dropped + rows4 * room, *unused = slopes + rows4 * room;
  memset(queries, 0, sizeof(float) * (p - queries));
  for (int b = 0; b < windows; b++)
    for (int h = 0; h < s->heads; h++) {
      size_t at_asked = (size_t)b * asked * D + h * d, at = (size_t)b * length * 2 * D + h * d;
      NAME(fetch)(q + at_asked, D, b_q + h * d, s->score_scale, asked, d, queries);
      NAME(fetch)(g_mixed + at_asked, D, NULL, 1.0f, asked, d, grads);
      NAME(fetch)(kv + at, 2 * D, NULL, 1.0f, length, d, keys);
      NAME(fetch)(kv + at + D, 2 * D, b_kv + D + h * d, 1.0f, length, d, values);
      NAME(transpose)(keys, padded, room, padded, key_columns, room);
      NAME(transpose)(values, padded, room, padded, value_columns, room);
      for (int row = 0; row < asked; row += FOUR) {
        int rows = asked - row < FOUR ? asked - row : FOUR;
        int seen = s->first + (row + rows - 1) * s->every + 1;
        float *own = p + row * room, *slope = slopes + row * room, *less = dropped + row * room;
        NAME(four_weights)(s, queries + row * padded, key_columns, room, row, own);
        for (int j = 0; j < room; j += LANES) {
          vf products[FOUR] = {{0}};
          if (j < seen)
            NAME(four_products)(grads + row * padded, padded, value_columns + j, room, d, products);
          for (int r = 0; r < FOUR; r++) NAME(store)(slope + r * room + j, products[r]);
        }
        memcpy(less, own, sizeof(float) * FOUR * room);
        if (words) {
          size_t pair = (size_t)(b * s->heads + h) * asked + row;
          NAME(drop_four)(s, words + pair * length, rows, less);
        }
        for (int r = 0; r < FOUR; r++) {
          vf total = {0};
          for (int j = r * room; j < (r + 1) * room; j += LANES) {
            vf value = NAME(load)(slope + j) * NAME(load)(less + j);
            NAME(store)(slope + j, value);
            total += value;
          }
          float mean = NAME(sum)(total);
          for (int j = r * room; j < (r + 1) * room; j += LANES)
            NAME(store)(slope + j, NAME(load)(slope + j) - mean * NAME(load)(own + j));
        }
        for (int c = 0; c < padded; c += LANES) {
          vf sums[FOUR];
          NAME(four_sums)(slope, room, keys + c, padded, seen, sums);
          for (int r = 0; r < rows; r++)
            NAME(put)(sums[r] * s->score_scale, d - c, g_q + at_asked + (size_t)(row + r) * D + c,
                      g_b_q + h * d + c);
        }
      }
      /* Over the queries, whose scale is in `queries` already; only those that look so far. */
      for (int j = 0; j < length; j += EIGHT)
        for (int c = 0; c < padded; c += LANES) {
          vf of_keys[EIGHT] = {{0}}, of_values[EIGHT] = {{0}};
          int some = length - j < EIGHT ? length - j : EIGHT;
          for (int i = first_asked(s, j); i < asked; i++) {
            vf query = NAME(load)(queries + i * padded + c);
            vf grad = NAME(load)(grads + i * padded + c);
            for (int e = 0; e < EIGHT; e++) {
              of_keys[e] += slopes[i * room + j + e] * query;
              of_values[e] += dropped[i * room + j + e] * grad;
            }
          }
          for (int e = 0; e < some; e++) {
            float *out = g_kv + at + (size_t)(j + e) * 2 * D + c;
            NAME(put)(of_keys[e], d - c, out, unused);
            NAME(put)(of_values[e], d - c, out + D, g_b_kv + D + h * d + c);
          }
        }
    }
}

/* ---- the block ---------------------------------------------------------------------------- */

/* Rows of the asked positions, one after the other. */
static INLINE void NAME(gather)(const shape_t *s, int windows, const float *x, float *out) {
  for (int b = 0; b < windows; b++)
    for (int i = 0; i < s->asked; i++, out += s->width)
      memcpy(out, x + ((size_t)b * s->length + s->first + i * s->every) * s->width,
             sizeof(float) * s->width);
}

/* Some windows through the block. `saved`: q, kv, mixed, x2, wide, one after the other.
 * Several workers share the rows and the heads, if all positions are asked. */
static void NAME(forward_tile)(const shape_t *s, crew_t *crew, const float *const *w, int windows,
                               const float *x, const int16_t *const *words, float *saved,
                               float *scratch, float *y) {
  const int D = s->width, R = windows * s->length, A = windows * s->asked, every = A == R;
  const int low = OWN(crew, R), high = OWN_END(crew, R), n = high - low;
  const int first = every ? low : 0, end = every ? high : A, m = end - first; /* asked rows */
  const size_t at = (size_t)first * D;
  float *q = saved, *kv = q + (size_t)A * D, *mixed = kv + 2 * (size_t)R * D;
  float *x2 = mixed + (size_t)A * D, *wide = x2 + (size_t)A * D + 4 * at;
  float *normed = scratch, *some = normed + (size_t)R * D, *active = some + (size_t)A * D;
  float *room = active + (size_t)crew->worker * crew->room;
  const float *asked = normed, *residual = x;
  NAME(norm)(x + (size_t)low * D, w[W_NORM1], w[B_NORM1], n, D, normed + (size_t)low * D);
  if (!every) {
    NAME(gather)(s, windows, normed, some);
    asked = some;
  }
  NAME(times)(m, D, D, asked + at, D, w[W_Q], D, 0, q + at, D);
  NAME(times)(n, 2 * D, D, normed + (size_t)low * D, D, w[W_KV], 2 * D, 0,
              kv + 2 * (size_t)low * D, 2 * D);
  meet(crew);
  NAME(attend)(s, windows, OWN(crew, s->heads), OWN_END(crew, s->heads), q, kv, w[B_Q], w[B_KV],
               words[0], room, mixed);
  meet(crew);
  active += 4 * at;
  NAME(times)(m, D, D, mixed + at, D, w[W_OUT], D, 0, normed + at, D);
  if (!every) {
    NAME(gather)(s, windows, x, some);
    residual = some;
  }
  for (int r = first; r < end; r++) {
    size_t row = (size_t)r * D;
    NAME(join_row)(residual + row, normed + row, w[B_OUT], words[1] ? words[1] + row : NULL,
                   s->branch_threshold, s->branch_scale, D, x2 + row);
    NAME(norm_row)(x2 + row, w[W_NORM2], w[B_NORM2], D, normed + row);
  }
  NAME(times)(m, 4 * D, D, normed + at, D, w[W_WIDE], 4 * D, 0, wide, 4 * D);
  NAME(gelu)(wide, w[B_WIDE], m, 4 * D, active);
  NAME(times)(m, D, 4 * D, active, 4 * D, w[W_NARROW], D, 0, normed + at, D);
  for (int r = first; r < end; r++) {
    size_t row = (size_t)r * D;
    NAME(join_row)(x2 + row, normed + row, w[B_NARROW], words[2] ? words[2] + row : NULL,
                   s->branch_threshold, s->branch_scale, D, y + row);
  }
}

/* Gradient of x; those of the weights, g, are added up. */
static void NAME(backward_tile)(const shape_t *s, const float *const *w, int windows,
                                const float *x, const int16_t *const *words, const float *saved,
                                const float *grad, float *scratch, float *g_x, float *const *g) {
  const int D = s->width, R = windows * s->length, A = windows * s->asked, every = A == R;
  const float *q = saved, *kv = q + (size_t)A * D, *mixed = kv + 2 * (size_t)R * D;
  const float *x2 = mixed + (size_t)A * D, *wide = x2 + (size_t)A * D;
  float *branch = scratch, *g_x2 = branch + (size_t)A * D, *normed = g_x2 + (size_t)A * D;
  float *g_wide = normed + (size_t)R * D, *active = g_wide + 4 * (size_t)A * D;
  /* MLP. */
  NAME(join_backward)(grad, words[2], s->branch_threshold, s->branch_scale, A, D, g[B_NARROW],
                      branch);
  NAME(times)(A, 4 * D, D, branch, D, w[W_NARROW], 4 * D, 0, g_wide, 4 * D);
  NAME(gelu_backward)(wide, w[B_WIDE], A, 4 * D, g_wide, active, g[B_WIDE]);
  NAME(add_outer)(D, 4 * D, A, branch, D, active, 4 * D, g[W_NARROW], 4 * D);
  NAME(norm)(x2, w[W_NORM2], w[B_NORM2], A, D, normed);
  NAME(add_outer)(4 * D, D, A, g_wide, 4 * D, normed, D, g[W_WIDE], D);
  NAME(times)(A, D, 4 * D, g_wide, 4 * D, w[W_WIDE], D, 0, g_x2, D);
  for (int r = 0; r < A; r++) {
    float *out = g_x2 + (size_t)r * D;
    NAME(norm_row_backward)(x2 + (size_t)r * D, w[W_NORM2], out, D, g[W_NORM2], g[B_NORM2], out);
    NAME(add_row)(out, grad + (size_t)r * D, D);
  }
  /* Attention; what the MLP needed is free again. */
  NAME(join_backward)(g_x2, words[1], s->branch_threshold, s->branch_scale, A, D, g[B_OUT], branch);
  NAME(add_outer)(D, D, A, branch, D, mixed, D, g[W_OUT], D);
  float *g_mixed = normed, *g_q = branch, *g_kv = g_wide, *rest = g_kv + 2 * (size_t)R * D;
  NAME(times)(A, D, D, branch, D, w[W_OUT], D, 0, g_mixed, D);
  NAME(attend_backward)(s, windows, q, kv, w[B_Q], w[B_KV], words[0], g_mixed, rest, g_q, g_kv,
                        g[B_Q], g[B_KV]);
  const float *asked = normed;
  NAME(norm)(x, w[W_NORM1], w[B_NORM1], R, D, normed);
  if (!every) {
    NAME(gather)(s, windows, normed, rest);
    asked = rest;
  }
  NAME(add_outer)(D, D, A, g_q, D, asked, D, g[W_Q], D);
  NAME(add_outer)(2 * D, D, R, g_kv, 2 * D, normed, D, g[W_KV], D);
  NAME(times)(R, D, 2 * D, g_kv, 2 * D, w[W_KV], D, 0, g_x, D);
  NAME(times)(A, D, D, g_q, D, w[W_Q], D, every, every ? g_x : rest, D);
  for (int b = 0, i = 0; b < windows; b++) /* i: the next asked row */
    for (int at = 0; at < s->length; at++) {
      size_t row = (size_t)b * s->length + at;
      float *out = g_x + row * D;
      int is_asked = at >= s->first && (at - s->first) % s->every == 0;
      if (is_asked && !every) NAME(add_row)(out, rest + (size_t)i * D, D);
      NAME(norm_row_backward)(x + row * D, w[W_NORM1], out, D, g[W_NORM1], g[B_NORM1], out);
      if (is_asked) NAME(add_row)(out, g_x2 + (size_t)i++ * D, D);
    }
}

/* The weight matrices of a block transposed, as `forward_tile` wants them; `out` is as `w` else. */
static void NAME(turn)(const shape_t *s, const float *const *w, float *room, const float **out) {
  const int D = s->width;
  const struct { int which, rows, columns; } matrices[] = {
      {W_Q, D, D}, {W_KV, 2 * D, D}, {W_OUT, D, D}, {W_WIDE, 4 * D, D}, {W_NARROW, D, 4 * D}};
  memcpy(out, w, sizeof(*w) * WEIGHTS);
  for (int i = 0; i < 5; i++) {
    int m = matrices[i].rows, n = matrices[i].columns;
    NAME(transpose)(w[matrices[i].which], n, m, n, room, m);
    out[matrices[i].which] = room;
    room += (size_t)m * n;
  }
}

static void NAME(forward)(const shape_t *s, const float *const *w, const float *x,
                          const int16_t *const *words, float *saved, float *scratch, float *y) {
  const float *turned[WEIGHTS];
  crew_t alone = {0, 1, 0, NULL};
  NAME(turn)(s, w, scratch, turned);
  scratch += TURNED(s->width);
  for (int b = 0; b < s->windows; b += s->tile) {
    int n = s->windows - b < s->tile ? s->windows - b : s->tile;
    const int16_t *own[3];
    own_words(s, words, b, own);
    NAME(forward_tile)(s, &alone, turned, n, x + (size_t)b * s->length * s->width, own,
                       s->keep ? saved + (size_t)b * s->saved_per_window : saved, scratch,
                       y + (size_t)b * s->asked * s->width);
  }
}

static void NAME(backward)(const shape_t *s, const float *const *w, const float *x,
                           const int16_t *const *words, const float *saved, const float *grad,
                           float *scratch, float *g_x, float *const *g) {
  for (int b = 0; b < s->windows; b += s->tile) {
    int n = s->windows - b < s->tile ? s->windows - b : s->tile;
    const int16_t *own[3];
    own_words(s, words, b, own);
    NAME(backward_tile)(s, w, n, x + (size_t)b * s->length * s->width, own,
                        saved + (size_t)b * s->saved_per_window,
                        grad + (size_t)b * s->asked * s->width, scratch,
                        g_x + (size_t)b * s->length * s->width, g);
  }
}

/* ---- embeddings --------------------------------------------------------------------------- */

/* Tokens of every step, normalised: x (B, S T - 1, D) without the last. `tokens` (B T, S, D) is
 * what was normalised. The weights of each kind of token are transposed, (size, D). */
static void NAME(embed)(const steps_t *s, const float *const *inputs, const int64_t *times,
                        const float *const *w, const float *table, const int16_t *words,
                        float *tokens, float *x) {
  const int D = s->width, S = s->kinds, N = s->windows * s->steps;
  for (int k = 0; k < S; k++)
    NAME(times)(N, D, s->sizes[k], inputs[k], s->sizes[k], w[2 * k], D, 0, tokens + (size_t)k * D,
                (size_t)S * D);
  for (int n = 0; n < N; n++)
    for (int k = 0; k < S; k++) {
      float *token = tokens + ((size_t)n * S + k) * D;
      if (k == S - 1 && n % s->steps == s->steps - 1) continue;
      NAME(add_row)(token, w[2 * k + 1], D);
      NAME(add_row)(token, table + (size_t)times[n] * D, D);
      NAME(norm_row)(token, w[2 * S], w[2 * S + 1], D, x);
      if (words) {
        for (int c = 0; c < D; c += LANES)
          NAME(store)(x + c, (vf)((vi)(NAME(load)(x + c) * s->scale) &
                                  NAME(kept)(words + c, s->threshold)));
        words += D;
      }
      x += D;
    }
}

/* Gradients of the weights (transposed as well) and of the table, added up; `scratch` as tokens. */
static void NAME(embed_backward)(const steps_t *s, const float *const *inputs, const int64_t *times,
                                 const float *const *w, const int16_t *words, const float *tokens,
                                 const float *grad, float *scratch, float *const *g,
                                 float *g_table) {
  const int D = s->width, S = s->kinds, N = s->windows * s->steps;
  for (int n = 0; n < N; n++)
    for (int k = 0; k < S; k++) {
      float *out = scratch + ((size_t)n * S + k) * D;
      if (k == S - 1 && n % s->steps == s->steps - 1) {
        memset(out, 0, sizeof(float) * D);
        continue;
      }
      for (int c = 0; c < D; c += LANES) {
        vf value = NAME(load)(grad + c);
        if (words) value = (vf)((vi)(value * s->scale) & NAME(kept)(words + c, s->threshold));
        NAME(store)(out + c, value);
      }
      NAME(norm_row_backward)(tokens + ((size_t)n * S + k) * D, w[2 * S], out, D, g[2 * S],
                              g[2 * S + 1], out);
      NAME(add_row)(g[2 * k + 1], out, D);
      NAME(add_row)(g_table + (size_t)times[n] * D, out, D);
      grad += D;
      if (words) words += D;
    }
  for (int k = 0; k < S; k++)
    NAME(add_outer)(s->sizes[k], D, N, inputs[k], s->sizes[k], scratch + (size_t)k * D,
                    (size_t)S * D, g[2 * k], D);
}

/* ---- acting ------------------------------------------------------------------------------- */

/* The last block, asked at the last position of each window alone: x (B, L, D) -> y (B, D).
 * One query needs no keys and values of its own: q . (W n) = (W^T q) . n, and a mean of W n is W of
 * the mean. `w`: matrices transposed as for `forward_tile`; `w_kv` as it is. */
static void NAME(final_tile)(const shape_t *s, const float *const *w, const float *w_kv,
                             int windows, const float *x, float *scratch, float *y) {
  const int D = s->width, L = s->length, H = s->heads, d = s->head, room = PADDED(L);
  const size_t rows = (size_t)windows * D;
  float *normed = scratch, *asked = normed + rows * L, *seen = asked + rows * H;
  float *q = seen + rows * H, *mixed = q + rows, *x2 = mixed + rows, *wide = x2 + rows;
  float *active = wide + 4 * rows, *p = active + 4 * rows;
  NAME(norm)(x, w[W_NORM1], w[B_NORM1], windows * L, D, normed);
  NAME(times)(windows, D, D, normed + (size_t)(L - 1) * D, (size_t)L * D, w[W_Q], D, 0, q, D);
  for (int b = 0; b < windows; b++)
    for (int c = 0; c < D; c += LANES) {
      float *at = q + (size_t)b * D + c;
      NAME(store)(at, (NAME(load)(at) + NAME(load)(w[B_Q] + c)) * s->score_scale);
    }
  for (int h = 0; h < H; h++)
    NAME(times)(windows, D, d, q + h * d, D, w_kv + (size_t)h * d * D, D, 0, asked + (size_t)h * D,
                (size_t)H * D);
  for (int b = 0; b < windows; b++) {
    const float *own = normed + (size_t)b * L * D;
    for (int h = 0; h < H; h++) {
      const float *query = asked + ((size_t)b * H + h) * D;
      for (int j = 0; j < L; j++) {
        vf total = {0};
        for (int c = 0; c < D; c += LANES)
          total += NAME(load)(query + c) * NAME(load)(own + (size_t)j * D + c);
        p[h * room + j] = NAME(sum)(total);
      }
      NAME(softmax)(p + h * room, L - 1, room);
    }
    NAME(times)(H, D, L, p, room, own, D, 0, seen + (size_t)b * H * D, D);
  }
  for (int b = 0; b < windows; b++)
    for (int h = 0; h < H; h++)
      for (int e = h * d; e < (h + 1) * d; e++) {
        const float *mean = seen + ((size_t)b * H + h) * D, *row = w_kv + (size_t)(D + e) * D;
        vf total = {0};
        for (int c = 0; c < D; c += LANES) total += NAME(load)(mean + c) * NAME(load)(row + c);
        mixed[(size_t)b * D + e] = NAME(sum)(total) + w[B_KV][D + e];
      }
  NAME(times)(windows, D, D, mixed, D, w[W_OUT], D, 0, q, D);
  for (int b = 0; b < windows; b++) {
    size_t at = (size_t)b * D;
    NAME(join_row)(x + ((size_t)b * L + L - 1) * D, q + at, w[B_OUT], NULL, 0, 1.0f, D, x2 + at);
    NAME(norm_row)(x2 + at, w[W_NORM2], w[B_NORM2], D, mixed + at);
  }
  NAME(times)(windows, 4 * D, D, mixed, D, w[W_WIDE], 4 * D, 0, wide, 4 * D);
  NAME(gelu)(wide, w[B_WIDE], windows, 4 * D, active);
  NAME(times)(windows, D, 4 * D, active, 4 * D, w[W_NARROW], D, 0, q, D);
  for (int b = 0; b < windows; b++) {
    size_t at = (size_t)b * D;
    NAME(join_row)(x2 + at, q + at, w[B_NARROW], NULL, 0, 1.0f, D, y + at);
  }
}

/* What the last states of some windows know, (B, D). Weights, all matrices transposed: embeddings
 * and the norm behind them, the blocks, the last norm; then the last block's W_KV as it is.
 * Several workers share the blocks; the ends, which are short, are left to the first. */
static void NAME(last_states)(const steps_t *e, const shape_t *s, crew_t *crew, int layers, int b,
                              int windows, const float *const *inputs, const int64_t *times,
                              const float *const *w, const float *table, float *scratch,
                              float *out) {
  const size_t tile = (size_t)s->tile * s->length * s->width;
  float *tokens = scratch, *x = tokens + tile + (size_t)s->tile * s->width, *y = x + tile;
  float *saved = y + tile, *rest = saved + (size_t)s->tile * s->saved_per_window;
  const float *const *blocks = w + 2 * e->kinds + 2, *const *ends = blocks + WEIGHTS * layers;
  const int16_t *const none[3] = {NULL, NULL, NULL};
  const float *values[MOST_KINDS];
  steps_t own = *e;
  own.windows = windows;
  for (int k = 0; k < e->kinds; k++) values[k] = inputs[k] + (size_t)b * e->steps * e->sizes[k];
  if (crew->worker == 0)
    NAME(embed)(&own, values, times + (size_t)b * e->steps, w, table, NULL, tokens, x);
  meet(crew);
  for (int i = 0; i < layers - 1; i++) {
    NAME(forward_tile)(s, crew, blocks + WEIGHTS * i, windows, x, none, saved, rest, y);
    float *swap = x;
    x = y, y = swap;
  }
  meet(crew);
  if (crew->worker > 0) return;
  NAME(final_tile)(s, blocks + WEIGHTS * (layers - 1), ends[2], windows, x, saved, y);
  NAME(norm)(y, ends[0], ends[1], windows, s->width, out + (size_t)b * s->width);
}

#undef vf
#undef vi
#undef vs
#undef PLACES
