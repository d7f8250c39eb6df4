// What `backward_one_pass.cu` reads beside the tensors of attention, in its order: bias, mask and statistics;
// and zeros in `written`.
//
// Macro: BLOCKS = ceil(queries / 64). Written for NVRTC: includes nothing.

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef uint16_t bf16;

constexpr float LOG2E = 1.4426950408889634f;
constexpr int BLOCK_Q = 64, BLOCK_K = 128, TILES = 3, THREADS = 256;
constexpr bf16 MINUS_INFINITY = 0xff80, ONE = 0x3f80;
constexpr bf16 MASKED = 0xce6e;  // -1e9, rounded

#define DEVICE __device__ __forceinline__

DEVICE uint32_t rounded(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE float low_half(uint32_t x) { return __uint_as_float(x << 16); }
DEVICE float high_half(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

// Blocks of 64 queries and 128 keys (heads, 3, BLOCKS): a thread of the groups that compute, which holds keys
// g, g + 8 and queries 16 h + 2 t, + 1, + 8, + 9 of its warp's 16 keys (g = lane / 4, t = lane % 4), finds
// 16 bytes for each h. Minus infinity beyond the last.
DEVICE uint4 bias_words(const bf16* bias, long long query_stride, long long key_stride, int x,
                        int num_queries, int num_keys) {
  const int lane = x & 31, tile = x / (BLOCKS * 1024) % TILES, block = x / 1024 % BLOCKS;
  const int key = tile * BLOCK_K + (x >> 7 & 7) * 16 + (lane >> 2);
  const int query = block * BLOCK_Q + (x >> 5 & 3) * 16 + 2 * (lane & 3);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int k = key + 8 * (i & 1), q = query + 8 * (i >> 1);
    const bf16* from = bias + k * key_stride + q * query_stride;
    const uint32_t low = k < num_keys && q < num_queries ? from[0] : MINUS_INFINITY;
    const uint32_t high = k < num_keys && q + 1 < num_queries ? from[query_stride] : MINUS_INFINITY;
    words[i] = low | high << 16;
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// What is added to the logits of a row's keys: zeros, MASKED where the mask is zero, and ONE, as a sign, in a
// row without unmasked keys, where all weigh the same. A warp has a row; mask_bytes: of an element, 1, 2, 4.
DEVICE void write_added(const uint8_t* mask, long long key_stride, int mask_bytes, bf16* to, int num_keys) {
  const int lane = threadIdx.x & 31;
  uint32_t kept = 0;  // bit n: key 32 n + lane
#pragma unroll
  for (int n = 0; n < TILES * BLOCK_K / 32; n++) {
    const int k = n * 32 + lane;
    if (k < num_keys) {
      // Of a number without its sign.
      const uint8_t* at = mask + k * key_stride * mask_bytes;
      const uint32_t x = mask_bytes == 4   ? *(const uint32_t*)at << 1
                         : mask_bytes == 2 ? *(const uint16_t*)at << 17
                                           : *at;
      kept |= (uint32_t)(x != 0) << n;
    }
  }
  const bool none = !__any_sync(~0u, kept);
#pragma unroll
  for (int n = 0; n < TILES * BLOCK_K / 32; n++) {
    const int k = n * 32 + lane;
    to[k] = k >= num_keys || (kept >> n & 1) ? 0 : none ? ONE : MASKED;
  }
}

// One of three parts of bfloat16, which together have 24 bits, of minus eight numbers; the fourth is zero.
// Numbers lie in groups of 16 bytes, of which the last may have less than four.
DEVICE uint4 part_of(const float4* numbers, float factor, int part, int count) {
  const float4 zeros = make_float4(0, 0, 0, 0), x = count > 0 ? numbers[0] : zeros,
               y = count > 4 ? numbers[1] : zeros;
  const float all[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
  uint32_t words[4];
#pragma unroll
  for (int n = 0; n < 4; n++) {
    float low = 2 * n < count ? -factor * all[2 * n] : 0.f;
    float high = 2 * n + 1 < count ? -factor * all[2 * n + 1] : 0.f;
#pragma unroll
    for (int i = 0; i < 3; i++) {
      words[n] = rounded(low, high);
      if (i < part) low -= low_half(words[n]), high -= high_half(words[n]);
    }
  }
  return part < 3 ? make_uint4(words[0], words[1], words[2], words[3]) : make_uint4(0, 0, 0, 0);
}

// Grid (12 H BLOCKS + ceil(R H BLOCKS / 4) + ceil(R / 8), batch), 256 threads: for bias, statistics, mask.
//
// bias (B, H, Q, K), mask (B, R, K), of mask_bytes an element, lse, delta (B, R, H, Q), queries side by side,
// heads at multiples of 16 bytes.
// blocks (B, H, 3, BLOCKS, 64 x 128); added (B, R, 384); statistics (B, R, H, 8 BLOCKS, 8, 8): of eight
// queries each -lse, in the unit of the logits there, and -delta, as `part_of`; written (B, programs).
// Strides in elements.
extern "C" __global__ void __launch_bounds__(THREADS)
    one_pass_prepare(const bf16* bias, const uint8_t* mask, const float* lse, const float* delta,
                     uint4* blocks, bf16* added, uint4* statistics, int* written, long long bias_batch,
                     long long bias_head, long long bias_query, long long bias_key, long long mask_batch,
                     long long mask_row, long long mask_key, long long lse_batch, long long lse_row,
                     long long lse_head, long long delta_batch, long long delta_row, long long delta_head,
                     int mask_bytes, int num_rows, int num_heads, int num_queries, int num_keys, int programs,
                     float bias_scale) {
  const int of_head = TILES * BLOCKS * 1024, of_bias = num_heads * of_head / THREADS;
  const int of_statistics = (num_rows * num_heads * BLOCKS + 3) / 4;
  const int batch = blockIdx.y, index = blockIdx.x * THREADS + threadIdx.x;
  if (blockIdx.x < of_bias) {
    const bf16* from = bias + batch * bias_batch + index / of_head * bias_head;
    blocks[(long long)batch * num_heads * of_head + index] =
        bias_words(from, bias_query, bias_key, index, num_queries, num_keys);
    if (index < programs) written[batch * programs + index] = 0;
    return;
  }
  if (blockIdx.x < of_bias + of_statistics) {
    const int x = index - of_bias * THREADS, part = x & 3, of_delta = x >> 2 & 1;
    const int first = (x >> 3) % (8 * BLOCKS) * 8, line = (x >> 3) / (8 * BLOCKS), head = line % num_heads,
              row = line / num_heads;
    if (row >= num_rows) return;
    const float* from = of_delta ? delta + batch * delta_batch + row * delta_row + head * delta_head
                                 : lse + batch * lse_batch + row * lse_row + head * lse_head;
    const float factor = of_delta ? 1.f : 1.f / (LOG2E * bias_scale);
    statistics[(long long)batch * num_rows * num_heads * (BLOCKS * 64) + x] =
        part_of((const float4*)(from + first), factor, part, num_queries - first);
    return;
  }
  const int row = (blockIdx.x - of_bias - of_statistics) * (THREADS / 32) + (threadIdx.x >> 5);
  if (row >= num_rows) return;
  write_added(mask + (batch * mask_batch + row * mask_row) * mask_bytes, mask_key, mask_bytes,
              added + ((long long)batch * num_rows + row) * (TILES * BLOCK_K), num_keys);
}
