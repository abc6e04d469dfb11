/* What torch has no fused operation for: the pointwise step of the projected LSTM, convolutions
 * reduced to each filter's maximum, and rows of a softmax.
 *
 * Products of matrices are torch's. This file includes no header of torch; `native.py` calls it
 * with the addresses of tensors. The compiler vectorises it.
 *
 * Every result is the same on all processors and with any number of threads: a fused multiply-add
 * is one only where it is written (`fmaf`; the build switches contraction off), sums run in a fixed
 * order, and a number is written by one thread. Raise KERNELS in compile.py when a result changes.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

typedef int64_t Size;
typedef uint16_t Bf16;

#define INLINE static inline __attribute__((always_inline))
#define PARALLEL _Pragma("omp parallel for num_threads(threads) schedule(static) if (threads > 1)")
#define VECTORISE _Pragma("GCC ivdep")

INLINE uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
INLINE float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

INLINE float load_bf16(Bf16 x) { return float_of((uint32_t)x << 16); }
INLINE Bf16 store_bf16(float x) /* to the nearest, ties to even */
{
    uint32_t u = bits_of(x);
    return (Bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
INLINE float load_f32(float x) { return x; }
INLINE float store_f32(float x) { return x; }

/* e^x by 2^n · e^r with |r| <= log(2)/2; at most 2 units in the last place off. Below -87.3 it is
 * about 1e-38, above 88.3 about 2e38. */
INLINE float exp_of(float x)
{
    x = x < -87.3f ? -87.3f : x > 88.3f ? 88.3f : x; /* NaN stays NaN */
    const float shift = 12582912.0f; /* 1.5 · 2^23: adding it rounds to a whole number */
    float shifted = fmaf(x, 1.44269504f, shift);
    float n = shifted - shift;
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    return p * float_of((bits_of(shifted) + 127) << 23);
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

INLINE float tanh_of(float x)
{
    float size = fabsf(x), square = x * x;
    float p = -5.70498872745e-3f;
    p = fmaf(p, square, 2.06390887954e-2f);
    p = fmaf(p, square, -5.37397155531e-2f);
    p = fmaf(p, square, 1.33314422036e-1f);
    p = fmaf(p, square, -3.33332819422e-1f);
    float near_zero = fmaf(p * square, x, x);
    float far = copysignf(1.0f - 2.0f / (exp_of(2.0f * size) + 1.0f), x);
    return size < 0.625f ? near_zero : far;
}

/* ---- One step of the LSTM ------------------------------------------------------------------
 *
 * The sums of the gates i, j, f and o of a row are next to each other, `dim` numbers each. A step of
 * a window is `rows` such rows; the groups (directions) are `z_group` numbers apart, and those of
 * cells and `hidden` `cell_group`. `rec` and `dh` have no gaps. `keep` has 0 for rows that forget
 * their cell before this step, and 1 for others; it may be NULL.
 */
typedef struct {
    Size groups, rows, dim, z_group, cell_group;
} Step;

/* `z` has the sums of the inputs, and gets those of the gates, which the backward step reads.
 * `rec` has the recurrent sums. Fills `cell` and `hidden` = sigma(o) · tanh(c). */
#define LSTM_FORWARD(NAME, NUMBER, LOAD, STORE)                                                  \
    void NAME(                                                                                   \
        int threads, const Step *s, Size before_group, NUMBER *all_z, const NUMBER *all_rec,     \
        const float *all_bias, const float *all_before, float *all_cells, NUMBER *all_hidden,    \
        const float *keep, float clip)                                                           \
    {                                                                                            \
        const Size dim = s->dim;                                                                 \
        PARALLEL                                                                                 \
        for (Size at = 0; at < s->groups * s->rows; at++) {                                      \
            const Size g = at / s->rows, row = at % s->rows;                                     \
            const float kept = keep ? keep[row] : 1.0f;                                          \
            NUMBER *restrict z = all_z + g * s->z_group + row * 4 * dim;                         \
            const NUMBER *restrict rec = all_rec + at * 4 * dim;                                 \
            const float *restrict bias = all_bias + g * 4 * dim;                                 \
            const float *restrict before = all_before + g * before_group + row * dim;            \
            float *restrict cell = all_cells + g * s->cell_group + row * dim;                    \
            NUMBER *restrict hidden = all_hidden + g * s->cell_group + row * dim;                \
            VECTORISE                                                                            \
            for (Size k = 0; k < dim; k++) {                                                     \
                const Size j = dim + k, f = 2 * dim + k, o = 3 * dim + k;                        \
                const float sum_i = LOAD(z[k]) + LOAD(rec[k]) + bias[k];                         \
                const float sum_j = LOAD(z[j]) + LOAD(rec[j]) + bias[j];                         \
                const float sum_f = LOAD(z[f]) + LOAD(rec[f]) + bias[f];                         \
                const float sum_o = LOAD(z[o]) + LOAD(rec[o]) + bias[o];                         \
                z[k] = STORE(sum_i), z[j] = STORE(sum_j);                                        \
                z[f] = STORE(sum_f), z[o] = STORE(sum_o);                                        \
                const float old = sigmoid(sum_f) * kept * before[k];                             \
                float c = fmaf(sigmoid(sum_i), tanh_of(sum_j), old);                             \
                c = c < -clip ? -clip : c > clip ? clip : c;                                     \
                cell[k] = c;                                                                     \
                hidden[k] = STORE(sigmoid(sum_o) * tanh_of(c));                                  \
            }                                                                                    \
        }                                                                                        \
    }

LSTM_FORWARD(lstm_forward_f32, float, load_f32, store_f32)
LSTM_FORWARD(lstm_forward_bf16, Bf16, load_bf16, store_bf16)

/* The same step without a backward one: `z` has the whole sums of the gates and is only read, and
 * `cell` is updated in place. The groups are `z_group` numbers of `z` and `cell_group` numbers of
 * cells and `hidden` apart. */
void lstm_read(
    int threads, Size groups, Size rows, Size dim, Size z_group, Size cell_group,
    const float *all_z, float *all_cells, float *all_hidden, float clip)
{
    PARALLEL
    for (Size at = 0; at < groups * rows; at++) {
        const Size g = at / rows, row = at % rows;
        const float *restrict z = all_z + g * z_group + row * 4 * dim;
        float *restrict cell = all_cells + g * cell_group + row * dim;
        float *restrict hidden = all_hidden + g * cell_group + row * dim;
        VECTORISE
        for (Size k = 0; k < dim; k++) {
            const float old = sigmoid(z[2 * dim + k]) * cell[k];
            float c = fmaf(sigmoid(z[k]), tanh_of(z[dim + k]), old);
            c = c < -clip ? -clip : c > clip ? clip : c;
            cell[k] = c;
            hidden[k] = sigmoid(z[3 * dim + k]) * tanh_of(c);
        }
    }
}

/* The reverse: `z` gets the gradient of the gates' sums, and `dc`, the gradient of the cell, that
 * of the cell before. `dh` is the gradient of `hidden`. No gradient passes where the clip binds. */
#define LSTM_BACKWARD(NAME, NUMBER, LOAD, STORE)                                                 \
    void NAME(                                                                                   \
        int threads, const Step *s, Size before_group, NUMBER *all_z, const NUMBER *all_dh,      \
        const float *all_before, const float *all_cells, float *all_dc, const float *keep,       \
        float clip)                                                                              \
    {                                                                                            \
        const Size dim = s->dim;                                                                 \
        PARALLEL                                                                                 \
        for (Size at = 0; at < s->groups * s->rows; at++) {                                      \
            const Size g = at / s->rows, row = at % s->rows;                                     \
            const float kept = keep ? keep[row] : 1.0f;                                          \
            NUMBER *restrict z = all_z + g * s->z_group + row * 4 * dim;                         \
            const NUMBER *restrict dh = all_dh + at * dim;                                       \
            const float *restrict before = all_before + g * before_group + row * dim;            \
            const float *restrict cell = all_cells + g * s->cell_group + row * dim;              \
            float *restrict dc = all_dc + at * dim;                                              \
            VECTORISE                                                                            \
            for (Size k = 0; k < dim; k++) {                                                     \
                const float i = sigmoid(LOAD(z[k])), j = tanh_of(LOAD(z[dim + k]));              \
                const float f = sigmoid(LOAD(z[2 * dim + k])) * kept;                            \
                const float o = sigmoid(LOAD(z[3 * dim + k]));                                   \
                const float c = cell[k], t = tanh_of(c), d = LOAD(dh[k]);                        \
                float d_cell = fmaf(d * o, 1.0f - t * t, dc[k]);                                 \
                d_cell = c <= -clip || c >= clip ? 0.0f : d_cell;                                \
                z[k] = STORE(d_cell * j * (i * (1.0f - i)));                                     \
                z[dim + k] = STORE(d_cell * i * (1.0f - j * j));                                 \
                z[2 * dim + k] = STORE(d_cell * before[k] * (f * (1.0f - f)));                   \
                z[3 * dim + k] = STORE(d * t * (o * (1.0f - o)));                                \
                dc[k] = d_cell * f;                                                              \
            }                                                                                    \
        }                                                                                        \
    }

LSTM_BACKWARD(lstm_backward_f32, float, load_f32, store_f32)
LSTM_BACKWARD(lstm_backward_bf16, Bf16, load_bf16, store_bf16)

/* ---- Convolutions reduced to each filter's maximum --------------------------------------------
 *
 * A word is a row of character vectors, [positions · char_dim] numbers, so the window at a position
 * is contiguous, and windows overlap. A filter is the column of a matrix [size, number], where size
 * is width · char_dim.
 */
#if defined(__AVX512F__)
#define LANES 16
#define PER_BLOCK 4
#elif defined(__FMA__)
#define LANES 8
#define PER_BLOCK 2
#else
#define LANES 4
#define PER_BLOCK 2
#endif
#define MOST_STARTS 6 /* windows at a time: MOST_STARTS · PER_BLOCK sums stay in registers */

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));

INLINE Vector load_vector(const float *p) { Vector v; memcpy(&v, p, sizeof v); return v; }
INLINE Vector multiply_add(Vector a, Vector b, Vector c)
{
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int lane = 0; lane < LANES; lane++) c[lane] = fmaf(a[lane], b[lane], c[lane]);
    return c;
#endif
}

/* Update the maxima of `vectors` vectors of filters with `starts` windows from window `first` on. */
INLINE void look_at(
    const int starts, const int vectors, const float *word, Size char_dim, Size size,
    const float *weight, Size number, int first, Vector *best, Whole *place)
{
    Vector sums[MOST_STARTS][PER_BLOCK];
#pragma GCC unroll 8
    for (int s = 0; s < starts; s++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[s][v] = (Vector){0};
    for (Size k = 0; k < size; k++) {
        Vector w[PER_BLOCK];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) w[v] = load_vector(weight + k * number + v * LANES);
#pragma GCC unroll 8
        for (int s = 0; s < starts; s++) {
            Vector e = word[s * char_dim + k] - (Vector){0};
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[s][v] = multiply_add(w[v], e, sums[s][v]);
        }
    }
#pragma GCC unroll 8
    for (int s = 0; s < starts; s++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) { /* the first of equal ones; NaN stays */
            Whole is_new = (sums[s][v] > best[v]) | (sums[s][v] != sums[s][v]);
            Whole here = (Whole){0} + (first + s);
            best[v] = (Vector)(((Whole)sums[s][v] & is_new) | ((Whole)best[v] & ~is_new));
            place[v] = (here & is_new) | (place[v] & ~is_new);
        }
}

INLINE void best_windows(
    const int vectors, int starts, const float *word, Size char_dim, Size size,
    const float *weight, Size number, float *out, uint16_t *places)
{
    Vector best[PER_BLOCK];
    Whole place[PER_BLOCK];
    for (int v = 0; v < vectors; v++) best[v] = (Vector){0} - INFINITY, place[v] = (Whole){0};
    for (int first = 0; first < starts; first += MOST_STARTS) {
        const float *at = word + first * char_dim;
#define LOOK(N) look_at(N, vectors, at, char_dim, size, weight, number, first, best, place)
        switch (starts - first) {
        case 1: LOOK(1); break;
        case 2: LOOK(2); break;
        case 3: LOOK(3); break;
        case 4: LOOK(4); break;
        case 5: LOOK(5); break;
        default: LOOK(6); break;
        }
#undef LOOK
    }
    for (int v = 0; v < vectors; v++)
        for (int lane = 0; lane < LANES; lane++) {
            out[v * LANES + lane] = best[v][lane];
            places[v * LANES + lane] = (uint16_t)place[v][lane];
        }
}

/* For each word the largest value of every filter among its first windows, and where it is. `out`
 * and `places` have rows of `all` numbers, of which this filter bank fills `number`. The word u has
 * min(starts[u], most) windows. */
void convolve(
    int threads, Size words, Size row, Size char_dim, Size width, Size number, Size all, int most,
    const int32_t *starts, const float *embedded, const float *weight, float *out,
    uint16_t *places)
{
    const Size size = width * char_dim;
    PARALLEL
    for (Size u = 0; u < words; u++) {
        const float *word = embedded + u * row;
        const int n = starts[u] < most ? starts[u] : most;
        Size f = 0;
        for (; f + PER_BLOCK * LANES <= number; f += PER_BLOCK * LANES)
            best_windows(PER_BLOCK, n, word, char_dim, size, weight + f, number, out + u * all + f,
                         places + u * all + f);
        for (; f + LANES <= number; f += LANES)
            best_windows(1, n, word, char_dim, size, weight + f, number, out + u * all + f,
                         places + u * all + f);
        for (; f < number; f++) {
            float best = -INFINITY;
            int place = 0;
            for (int p = 0; p < n; p++) {
                float sum = 0;
                for (Size k = 0; k < size; k++)
                    sum = fmaf(weight[k * number + f], word[p * char_dim + k], sum);
                if (sum > best || sum != sum) best = sum, place = p;
            }
            out[u * all + f] = best;
            places[u * all + f] = (uint16_t)place;
        }
    }
}

/* The gradients of the filters, [number, size], and of the characters. A filter looked at one
 * window of a word, so only that one has a part in them. `by_filter` are the filters as
 * [number, size]. Adds to both. */
void convolve_back(
    int threads, Size words, Size row, Size char_dim, Size width, Size number, Size all,
    const float *embedded, const float *by_filter, const float *grad, const uint16_t *places,
    float *d_embedded, float *d_filters)
{
    enum { BLOCK = 16 };
    const Size size = width * char_dim, blocks = (number + BLOCK - 1) / BLOCK;
    PARALLEL
    for (Size block = 0; block < blocks; block++) {
        const Size end = (block + 1) * BLOCK < number ? (block + 1) * BLOCK : number;
        for (Size u = 0; u < words; u++)
            for (Size f = block * BLOCK; f < end; f++) {
                const float g = grad[u * all + f];
                if (g == 0) continue;
                const float *window = embedded + u * row + places[u * all + f] * char_dim;
                float *d = d_filters + f * size;
                VECTORISE
                for (Size k = 0; k < size; k++) d[k] = fmaf(g, window[k], d[k]);
            }
    }
    PARALLEL
    for (Size u = 0; u < words; u++)
        for (Size f = 0; f < number; f++) {
            const float g = grad[u * all + f];
            if (g == 0) continue;
            float *d = d_embedded + u * row + places[u * all + f] * char_dim;
            const float *filter = by_filter + f * size;
            VECTORISE
            for (Size k = 0; k < size; k++) d[k] = fmaf(g, filter[k], d[k]);
        }
}

/* ---- Rows of a softmax --------------------------------------------------------------------- */

/* Replace the logits of each row by exp(logit - top), where top is the largest of them and of
 * `top[row]` as it is given, and return top and the sum. A logit at column hit[row] (if that is not
 * -1) does not count, and becomes 0. `bias` is added to the logits first. */
#define SOFTMAX(NAME, NUMBER, LOAD, STORE)                                                       \
    void NAME(int threads, Size rows, Size columns, NUMBER *logits, const float *bias,           \
              const int64_t *hit, float *top, float *sum)                                        \
    {                                                                                            \
        enum { WIDE = 64 };                                                                      \
        PARALLEL                                                                                 \
        for (Size r = 0; r < rows; r++) {                                                        \
            NUMBER *restrict x = logits + r * columns;                                           \
            if (hit && hit[r] >= 0) x[hit[r]] = STORE(-INFINITY);                                \
            float tops[WIDE], sums[WIDE];                                                        \
            for (int k = 0; k < WIDE; k++) tops[k] = -INFINITY, sums[k] = 0;                     \
            const Size whole = columns - columns % WIDE;                                         \
            for (Size c = 0; c < whole; c += WIDE)                                               \
                VECTORISE                                                                        \
                for (int k = 0; k < WIDE; k++) {                                                 \
                    float v = LOAD(x[c + k]) + bias[c + k];                                      \
                    tops[k] = v > tops[k] ? v : tops[k];                                         \
                }                                                                                \
            for (Size c = whole; c < columns; c++) {                                             \
                float v = LOAD(x[c]) + bias[c];                                                  \
                tops[0] = v > tops[0] ? v : tops[0];                                             \
            }                                                                                    \
            float t = top[r];                                                                    \
            for (int k = 0; k < WIDE; k++) t = tops[k] > t ? tops[k] : t;                        \
            for (Size c = 0; c < whole; c += WIDE)                                               \
                VECTORISE                                                                        \
                for (int k = 0; k < WIDE; k++) {                                                 \
                    float e = exp_of(LOAD(x[c + k]) + bias[c + k] - t);                          \
                    sums[k] += e;                                                                \
                    x[c + k] = STORE(e);                                                         \
                }                                                                                \
            for (Size c = whole; c < columns; c++) {                                             \
                float e = exp_of(LOAD(x[c]) + bias[c] - t);                                      \
                sums[0] += e;                                                                    \
                x[c] = STORE(e);                                                                 \
            }                                                                                    \
            for (int n = WIDE / 2; n; n /= 2)                                                    \
                for (int k = 0; k < n; k++) sums[k] += sums[k + n];                              \
            if (hit && hit[r] >= 0) x[hit[r]] = STORE(0.0f);                                     \
            top[r] = t;                                                                          \
            sum[r] = sums[0];                                                                    \
        }                                                                                        \
    }

SOFTMAX(softmax_f32, float, load_f32, store_f32)
SOFTMAX(softmax_bf16, Bf16, load_bf16, store_bf16)
