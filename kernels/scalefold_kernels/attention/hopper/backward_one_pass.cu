// Gradients of queries, keys, values and bias in one pass, for Hopper GPUs and 257 to 384 queries and keys.
//
// Mathematics. Q as forward multiplied them, logits in the bias's unit, `grad` the result's gradient without
// the gate, UNIT = bias_scale log2 e (docs/kernels/attention.md):
//
//   P = exp2(UNIT (Q K^T + bias + mask) - lse)    dV = P^T grad    dQ = scale dS K
//   dS = P (grad V^T - delta)                     dK = bias_scale dS^T Q
//   d bias = bias_scale (sum over rows of dS)
//
// Each weight is computed once: one exponential and five products.
//
// Division of work. A program has 128 keys of a head (one of three tiles) for consecutive rows, and a
// multiprocessor for itself. It goes through a row in blocks of 64 queries. Its four warp groups:
//
//   0     multiplies dS, which it gets through shared memory, by the keys, and stores the part of dQ that
//         comes from these 128 keys. Its first thread loads for all groups.
//   1, 2  compute, 64 keys each. Logits are transposed (keys x queries), so that P and dS are left operands
//         of the products that give dV and dK, from registers as they are.
//   3     adds the three parts of dQ, for 128 queries of each row, in the order of the tiles. It waits for
//         the programs with the other two: all must be on the GPU at once (cooperative launch).
//
// No atomic additions of numbers: the same bits in every run.
//
// The sums over rows of dS, 128 x 384 in float32, stay on the chip: two blocks of 64 queries in registers,
// the others in shared memory. The bias comes in the order in which the threads hold logits, whose
// accumulators begin with it. -lse and -delta are added as products of ones and three parts of bfloat16
// each (24 bits): registers and instructions for 32 numbers a thread would cost more. `one_pass_prepare`
// makes both, and minus infinity for keys beyond the last. A mask is added where a warp's keys have one.
//
// Registers: 48 a thread of group 0, 216 of 1 and 2, 32 of 3, together all 65,536. Shared memory: nearly
// all of the 227 KiB, as below. Blocks are asked for two ahead, as soon as their places have been read.
//
// Macros: BLOCKS = ceil(queries / 64), 5 or 6; UNIT, 0 where bias_scale log2 e is 1, else 1. Written for
// NVRTC: includes nothing. Offsets in shared memory have a sign so that the compiler may take them apart
// (without one NVRTC's code spills 77 words).

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef uint16_t bf16;

// A descriptor of the copy engine (TMA), opaque.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

#define DEVICE __device__ __forceinline__

constexpr float LOG2E = 1.4426950408889634f;
constexpr int C = 32, BLOCK_Q = 64, BLOCK_K = 128, TILES = 3;
constexpr int PLACES = BLOCKS == 6 ? 3 : 5;  // of blocks of queries and gradients; divides BLOCKS
constexpr int THREADS = 512, LOADER_REGISTERS = 48, COMPUTE_REGISTERS = 216, ADDER_REGISTERS = 32;
static_assert(BLOCKS == 5 || BLOCKS == 6, "sums of as many blocks fit, and three tiles of keys");

// Blocks 0 and 2 have their sums in registers, the others, in this order, in shared memory.
DEVICE constexpr bool sums_in_registers(int block) { return block == 0 || block == 2; }
DEVICE constexpr int sums_place(int block) { return block == 1 ? 0 : block - 2; }

constexpr int SUM_BYTES = BLOCK_Q * BLOCK_K * 4;
constexpr int BIAS_BYTES = BLOCK_Q * BLOCK_K * 2;
constexpr int STATISTICS_BYTES = BLOCK_Q * 8 * 2;
constexpr int QUERY_BYTES = BLOCK_Q * C * 2;
constexpr int KEY_BYTES = BLOCK_K * C * 2;
constexpr bf16 ALIKE = 0x3f80;  // what `added` holds in a row without unmasked keys, where all weigh the same
constexpr int ADDED_BYTES = BLOCK_K * 2;
constexpr int ONES_BYTES = 256;

// Where things are in shared memory. Ones and statistics are not last: compute-sanitizer takes an operand for
// 2,048 bytes side by side. The dynamic part starts at 1 KiB on Hopper; as a constant that costs no
// registers.
constexpr int BASE = 1024;
constexpr int AT_DS = BASE;
constexpr int AT_BIAS = AT_DS + BIAS_BYTES;  // two places, as statistics, keys and what is added
constexpr int AT_KEYS = AT_BIAS + 2 * BIAS_BYTES;
constexpr int AT_VALUES = AT_KEYS + 2 * KEY_BYTES;
constexpr int AT_QUERIES = AT_VALUES + KEY_BYTES;
constexpr int AT_GRAD = AT_QUERIES + PLACES * QUERY_BYTES;
constexpr int AT_ONES = AT_GRAD + PLACES * QUERY_BYTES;
constexpr int AT_STATISTICS = AT_ONES + ONES_BYTES;
constexpr int AT_ADDED = AT_STATISTICS + 2 * STATISTICS_BYTES;
constexpr int AT_SUMS = AT_ADDED + 2 * ADDED_BYTES;
constexpr int BLOCK_FULL = AT_SUMS + (BLOCKS - 2) * SUM_BYTES;  // barriers, of 8 bytes
constexpr int KEYS_FULL = BLOCK_FULL + 8 * PLACES;
constexpr int DS_FULL = KEYS_FULL + 8;
constexpr int DS_EMPTY = DS_FULL + 8;
constexpr int BLOCK_READ = DS_EMPTY + 8;       // two
constexpr int WARPS_STORED = BLOCK_READ + 16;  // warps x rows whose parts of dQ are stored
constexpr int AT_WORK = WARPS_STORED + 8;
constexpr int SHARED_BYTES = AT_WORK + 32 - BASE;
static_assert(SHARED_BYTES <= 232448, "shared memory of a multiprocessor");

// Shared memory at an address: the compiler puts constant parts into the instruction.
#define SHARED(type, at) (*(type*)(memory + ((at) - BASE)))

// Read anew, so that what is made of them takes no registers in between.
DEVICE int thread_id() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
DEVICE int program_id() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

DEVICE void barrier_init(uint32_t at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
}
DEVICE void expect(uint32_t at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
DEVICE void arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
DEVICE void wait(uint32_t at, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred P;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
      "@P bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(at),
      "r"(parity)
      : "memory");
}
// What was written to shared memory, for the copy engine and the products.
DEVICE void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies by the copy engine: positions of a tensor (batch, row, position, head, channel), and bytes.
DEVICE void copy_tile(uint32_t to, const TensorMap* map, uint32_t full, int head, int position, int row,
                      int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(full), "r"(0), "r"(head), "r"(position), "r"(row), "r"(batch)
      : "memory");
}
DEVICE void copy_bytes(uint32_t to, const void* from, int bytes, uint32_t full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(full)
      : "memory");
}

// Operands in shared memory, as wgmma's descriptors. Swizzled rows of 64 or 128 bytes: eight of them are
// OFFSET bytes, and there is one swizzle atom only in the other direction, whose offset is of no use.
constexpr uint64_t SWIZZLE_128 = 1ull << 62, SWIZZLE_64 = 2ull << 62;
template <int OFFSET>
DEVICE uint64_t operand(uint32_t at, uint64_t swizzle) {
  return (uint64_t)(at >> 4) | ((uint64_t)(OFFSET >> 4) << 16) | ((uint64_t)(OFFSET >> 4) << 32) | swizzle;
}
// Statistics: 8 channels x 8 queries are 128 bytes, not swizzled. Channels 8 to 15 are 0 to 7 again.
DEVICE uint64_t statistics_operand(uint32_t at) { return (uint64_t)(at >> 4) | ((uint64_t)(128 >> 4) << 32); }
// The ones: 8 keys x 8 channels are 128 bytes; keys 8 to 63 are 0 to 7 again.
DEVICE uint64_t ones_operand(uint32_t at) { return (uint64_t)(at >> 4) | ((uint64_t)(128 >> 4) << 16); }

DEVICE void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
DEVICE void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// The compiler must not move what uses these registers across.
template <int n>
DEVICE void hold(float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+f"(x[i])::"memory");
}

#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, i + 4), FOUR(d, i + 8), FOUR(d, i + 12)
#define NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

// d (+)= a b^T: a (64 keys x 16 channels), b (64 queries x 16 channels; TURNED: queries are side by side).
// Here a is in shared memory,
template <int ADD, int TURNED>
DEVICE void mma_weights(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, %32, %33, p, 1, 1, 0, %35;\n}"
      : SIXTEEN(d, 0), SIXTEEN(d, 16)
      : "l"(a), "l"(b), "n"(ADD), "n"(TURNED));
}
// here in registers.
DEVICE void mma_weights(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
               : SIXTEEN(d, 0), SIXTEEN(d, 16)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// d (+)= a b: a (64 keys x 16 queries) in registers, b (16 queries x 32 channels).
template <int ADD>
DEVICE void mma_keys(float (&d)[16], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NAMES_16
      "}, {%16,%17,%18,%19}, %20, p, 1, 1, 1;\n}"
      : SIXTEEN(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
}
// d (+)= a^T b: a (16 keys x 64 queries), b (16 keys x 32 channels), both in shared memory.
template <int ADD>
DEVICE void mma_queries(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NAMES_16 "}, %16, %17, p, 1, 1, 1, 1;\n}"
      : SIXTEEN(d, 0)
      : "l"(a), "l"(b), "n"(ADD));
}
DEVICE void load_matrices(uint32_t* r, uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
DEVICE void store_matrices(uint32_t at, const uint32_t* r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// Pairs of bfloat16 in a word.
DEVICE uint32_t rounded(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE float low_half(uint32_t x) { return __uint_as_float(x << 16); }
DEVICE float high_half(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
DEVICE uint32_t sum_of_three(uint32_t a, uint32_t b, uint32_t c) {
  return rounded(low_half(a) + low_half(b) + low_half(c), high_half(a) + high_half(b) + high_half(c));
}
DEVICE float exp2_of(float x) {
  float r;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Of four threads t = 0..3 with words n = 0..3, which are channels 8 n + 2 t, + 1: channels 8 t .. 8 t + 7.
DEVICE uint4 quad_turn(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, int t) {
  const bool odd = t & 1, upper = t & 2;
  uint32_t x = __shfl_xor_sync(~0u, odd ? w0 : w1, 1), y = __shfl_xor_sync(~0u, odd ? w2 : w3, 1);
  const uint32_t p = odd ? x : w0, q = odd ? w1 : x, r = odd ? y : w2, s = odd ? w3 : y;
  x = __shfl_xor_sync(~0u, upper ? p : r, 2), y = __shfl_xor_sync(~0u, upper ? q : s, 2);
  return upper ? make_uint4(x, y, r, s) : make_uint4(p, q, x, y);
}
// What a warp holds of a product (16 rows x 32 channels), times a factor, to as many rows as there are.
DEVICE void store_rows(const float (&d)[16], float factor, bf16* to, long long pitch, int rows, int channels,
                       int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    uint32_t w[4];
#pragma unroll
    for (int n = 0; n < 4; n++) w[n] = rounded(d[4 * n + 2 * e] * factor, d[4 * n + 2 * e + 1] * factor);
    const uint4 x = quad_turn(w[0], w[1], w[2], w[3], t);
    if (g + 8 * e < rows && 8 * t < channels) *(uint4*)(to + (g + 8 * e) * pitch + 8 * t) = x;
  }
}

// A thread's 16 bytes of a block of sums are 512 bytes from the next, after four 16 KiB.
DEVICE constexpr int sum_step(int n) { return (n >> 2) * 16384 + (n & 3) * 512; }

// What a program works on: a tile of 128 keys of a head, and consecutive rows.
struct Work {
  int tile, head, group, first_row, rows, batch;
  DEVICE Work(int num_rows, int num_heads, uint32_t program) {
    const uint32_t groups = gridDim.x / (TILES * num_heads);
    tile = program % TILES;
    head = program / TILES % num_heads;
    group = program / (TILES * num_heads);
    first_row = group * num_rows / groups;
    rows = (group + 1) * num_rows / groups - first_row;
    batch = blockIdx.y;
  }
};

// Grid (groups of rows x heads x 3, batch), 512 threads, SHARED_BYTES; at most as many groups as rows.
//
// q_map, grad_map, k_map, v_map: (batch, row, position, head, channel) of queries as forward multiplied
// them, gradients of the result without the gate, keys, values; boxes of 64 (queries) and 128 positions, 32
// channels, swizzled by 64 bytes, zeros beyond the last.
// bias (B, H, 3, BLOCKS, 64 x 128), added (B, R, 384), statistics (B, R, H, 8 BLOCKS, 8, 8), written
// (B, programs; zeros): from `one_pass_prepare`.
// parts (3, B, R, H, Q, 32): of the gradients of queries, from each tile of keys.
// sums (groups, B, H, Q, K) or, by its last two strides, (groups, B, H, K, Q): the bias's gradient by groups
// of rows.
// Strides in elements.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    one_pass(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap grad_map,
             const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map,
             const bf16* bias, const bf16* added, const bf16* statistics, bf16* grad_q, bf16* grad_k,
             bf16* grad_v, float* sums, bf16* parts, int* written, long long q_batch, long long q_row,
             long long q_position, long long q_head, long long k_batch, long long k_row, long long k_position,
             long long k_head, long long v_batch, long long v_row, long long v_position, long long v_head,
             long long sums_query, long long sums_key, int num_rows, int num_heads, int num_queries,
             int num_keys, int channels, float scale, float bias_scale) {
  extern __shared__ __align__(1024) uint8_t memory[];
  const int group = threadIdx.x >> 7, warp = (threadIdx.x >> 5) & 3, lane = threadIdx.x & 31;

  if (threadIdx.x == 0) {
    if ((uint32_t)__cvta_generic_to_shared(memory) != BASE) __trap();
    for (int i = 0; i < PLACES; i++) barrier_init(BLOCK_FULL + 8 * i, 1);
    barrier_init(KEYS_FULL, 1);
    for (int i = 0; i < 2; i++) barrier_init(BLOCK_READ + 8 * i, 8);  // warps that compute
    barrier_init(DS_FULL, 8);
    barrier_init(DS_EMPTY, 4);  // warps that multiply by the keys
    SHARED(uint32_t, WARPS_STORED) = 0;
    SHARED(Work, AT_WORK) = Work(num_rows, num_heads, blockIdx.x);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // The left operand of the statistics: of 16 channels ones in the first three, alike for all keys. And
  // zeros where the first block's products read 64 bytes too many, which are multiplied by zero.
  if (threadIdx.x < 16) {
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    SHARED(uint4, AT_ONES + threadIdx.x * 16) =
        threadIdx.x < 8 ? make_uint4(0x3f803f80, 0x3f80, 0, 0) : zeros;
    SHARED(uint4, AT_STATISTICS + STATISTICS_BYTES + threadIdx.x * 16) = zeros;
  }
  fence_shared();
  __syncthreads();

  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LOADER_REGISTERS));
    const Work own(num_rows, num_heads, blockIdx.x);
    const bool loads = threadIdx.x == 0;
    bias += ((own.batch * num_heads + own.head) * TILES + own.tile) * (BLOCKS * BLOCK_Q * BLOCK_K);
    // Of a row too many, which is the last again, keys and a block are loaded, since products go on to the
    // next row while one ends.
    auto load_keys = [&](int i) {
      const int row = own.first_row + min(i, own.rows - 1), first = own.tile * BLOCK_K;
      const bf16* mask = added + ((long long)own.batch * num_rows + row) * (TILES * BLOCK_K) + first;
      expect(KEYS_FULL, 2 * KEY_BYTES + ADDED_BYTES);
      copy_tile(AT_KEYS + (i & 1) * KEY_BYTES, &k_map, KEYS_FULL, own.head, first, row, own.batch);
      copy_tile(AT_VALUES, &v_map, KEYS_FULL, own.head, first, row, own.batch);
      copy_bytes(AT_ADDED + (i & 1) * ADDED_BYTES, mask, ADDED_BYTES, KEYS_FULL);
    };
    auto load_block = [&](int i, int j) {
      const int row = own.first_row + min(i, own.rows - 1), place = j % PLACES, side = (i * BLOCKS + j) & 1;
      const uint32_t full = BLOCK_FULL + 8 * place;
      const long long line = ((long long)own.batch * num_rows + row) * num_heads + own.head;
      expect(full, BIAS_BYTES + 2 * QUERY_BYTES + STATISTICS_BYTES);
      copy_tile(AT_QUERIES + place * QUERY_BYTES, &q_map, full, own.head, j * BLOCK_Q, row, own.batch);
      copy_tile(AT_GRAD + place * QUERY_BYTES, &grad_map, full, own.head, j * BLOCK_Q, row, own.batch);
      copy_bytes(AT_STATISTICS + side * STATISTICS_BYTES, statistics + (line * BLOCKS + j) * (BLOCK_Q * 8),
                 STATISTICS_BYTES, full);
      copy_bytes(AT_BIAS + side * BIAS_BYTES, bias + j * (BLOCK_Q * BLOCK_K), BIAS_BYTES, full);
    };
    if (loads) {
      load_keys(0);
      load_block(0, 0);
      load_block(0, 1);
    }
    __syncwarp();
    const long long line =
        (((long long)own.tile * gridDim.y + own.batch) * num_rows + own.first_row) * num_heads + own.head;
    bf16* to = parts + (line * num_queries + warp * 16) * C;
    for (int i = 0; i < own.rows; i++) {
      wait(KEYS_FULL, i & 1);
#pragma unroll 1
      for (int j = 0; j < BLOCKS; j++) {
        const int block = i * BLOCKS + j, side = block & 1;
        if (loads) {
          // The groups have read this block's bias and statistics, and all of the block before. By now they
          // may have read the next block's, too; so it has another barrier. Before the one after that, which
          // has this barrier, they wait for this block's product, below.
          wait(BLOCK_READ + 8 * side, (block >> 1) & 1);
          const int next = j + 2 >= BLOCKS, k = j + 2 - next * BLOCKS;
          if (i + next < own.rows || k == 0) load_block(i + next, k);
          // The groups are past the second block, so that all warps here have seen this row's keys.
          if (j == 2) load_keys(i + 1);
        }
        __syncwarp();
        wait(DS_FULL, side);
        fence_shared();  // of what the groups wrote
        float d[16];
        const uint64_t a = operand<1024>(AT_DS, SWIZZLE_128);
        const uint64_t b = operand<512>(AT_KEYS + (i & 1) * KEY_BYTES, SWIZZLE_64);
        mma_fence();
        mma_queries<0>(d, a, b);
#pragma unroll
        for (int s = 1; s < BLOCK_K / 16; s++) mma_queries<1>(d, a + s * (2048 >> 4), b + s * (1024 >> 4));
        mma_commit();
        mma_wait<0>();
        hold(d);
        __syncwarp();
        if (lane == 0) arrive(DS_EMPTY);
        store_rows(d, scale, to + j * (BLOCK_Q * C), C, num_queries - j * BLOCK_Q - warp * 16, C, lane);
      }
      to += (long long)num_heads * num_queries * C;
      __syncwarp();
      if (lane == 0)
        asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(WARPS_STORED) : "memory");
    }
  } else if (group == 3) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(ADDER_REGISTERS));
    // How many rows' parts the three programs with these rows have stored.
    auto rows_written = [&](int tile) {
      const int first = program_id() / TILES * TILES;
      return written + (blockIdx.y * gridDim.x + first + tile);
    };
    auto announce_row = [&](int i) {
      if (thread_id() == THREADS - 128) {
        int n;
        do asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(n) : "r"(WARPS_STORED) : "memory");
        while (n < 4 * (i + 1) && (__nanosleep(100), true));
        asm volatile("fence.acq_rel.gpu;\nst.relaxed.gpu.global.s32 [%0], %1;" ::"l"(
                         rows_written(SHARED(Work, AT_WORK).tile)),
                     "r"(i + 1)
                     : "memory");
      }
    };
    auto wait_for_row = [&](int i) {
      if (lane < TILES) {
        const int* const at = rows_written(lane);
        int n;
        do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(n) : "l"(at) : "memory");
        while (n <= i && (__nanosleep(50), true));
      }
      __syncwarp();
    };
    // 128 queries, 32 at a time; a thread has 8 channels.
    auto add_row = [&](int i) {
      const Work& own = SHARED(Work, AT_WORK);
      const int thread = thread_id() & 127, channel = 8 * (thread & 3);
      const int first = own.tile * 128 + (thread >> 2), row = own.first_row + i;
      const long long line = ((long long)own.batch * num_rows + row) * num_heads + own.head;
      const long long apart = (long long)gridDim.y * num_rows * num_heads * num_queries * (C / 8);
      const uint4* from = (const uint4*)(parts + (line * num_queries + first) * C + channel);
      bf16* to =
          grad_q + own.batch * q_batch + row * q_row + own.head * q_head + first * q_position + channel;
      if (channel >= channels) return;
#pragma unroll 1
      for (int query = first; query < min(num_queries, first + 128); query += 32) {
        uint4 p[TILES];
#pragma unroll
        for (int k = 0; k < TILES; k++) p[k] = __ldcg(from + k * apart);
        *(uint4*)to = make_uint4(sum_of_three(p[0].x, p[1].x, p[2].x), sum_of_three(p[0].y, p[1].y, p[2].y),
                                 sum_of_three(p[0].z, p[1].z, p[2].z), sum_of_three(p[0].w, p[1].w, p[2].w));
        from += 32 * C / 8, to += 32 * q_position;
      }
    };
    for (int i = 0; i < SHARED(Work, AT_WORK).rows; i++) {
      announce_row(i);
      wait_for_row(i);
      add_row(i);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COMPUTE_REGISTERS));
    const int half = group - 1;
    // Logits, then weights; their gradients; gradients of keys and values. A thread has keys
    // g = lane / 4 (elements 4 n, 4 n + 1) and g + 8 (4 n + 2, 4 n + 3), queries 8 n + 2 t, + 1.
    float s[32], ds[32], dk[16], dv[16];
    uint32_t v[8], p_rounded[16], ds_rounded[16];
    float in_registers[2][32];
#pragma unroll
    for (int n = 0; n < 32; n++) in_registers[0][n] = in_registers[1][n] = ds[n] = 0.f;
    const int mine = half * 8192 + warp * 2048 + lane * 16;
    for (int b = 0; b < BLOCKS - 2; b++)
#pragma unroll
      for (int n = 0; n < 8; n++)
        SHARED(float4, AT_SUMS + mine + b * SUM_BYTES + sum_step(n)) = make_float4(0, 0, 0, 0);
    const uint64_t q_rows = operand<512>(AT_QUERIES, SWIZZLE_64),
                   grad_rows = operand<512>(AT_GRAD, SWIZZLE_64);
    bool some_masked = false, alike = false;  // of the warp's keys; whether all weigh the same

    auto load_keys = [&](int i) {
      wait(KEYS_FULL, i & 1);
      const int x = thread_id() - 128, row = ((x >> 5) * 16 + (x & 15)) * 64, turn = (row >> 3) & 0x30;
#pragma unroll
      for (int h = 0; h < 2; h++)
        load_matrices(v + 4 * h, AT_VALUES + row + (((2 * h + ((x & 31) >> 4)) << 4) ^ turn));
      const uint32_t mask = SHARED(bf16, AT_ADDED + (i & 1) * ADDED_BYTES + ((x >> 5) * 16 + (x & 15)) * 2);
      some_masked = __any_sync(~0u, mask), alike = __any_sync(~0u, mask == ALIKE);
    };
    // What is added to the logits of the thread's two keys.
    auto masks = [&](int i) {
      const int x = thread_id() - 128,
                at = AT_ADDED + (i & 1) * ADDED_BYTES + ((x >> 5) * 16 + (x >> 2 & 7)) * 2;
      return make_float2(low_half(SHARED(bf16, at)), low_half(SHARED(bf16, at + 16)));
    };
    // Start the products of a block that give logits and gradients of weights, of channels 0 to 2 of the
    // statistics, which are -lse, and 4 to 6, which are -delta, and of queries and gradients.
    auto start = [&](int i, int j) {
      const int place = j % PLACES, side = (i * BLOCKS + j) & 1;
      wait(BLOCK_FULL + 8 * place, (i * (BLOCKS / PLACES) + j / PLACES) & 1);
      // 4,096 bytes for each group, as `mine` says (from another register ptxas would spill one).
      const uint64_t k_rows = operand<512>(AT_KEYS + (i & 1) * KEY_BYTES + (mine & 8192) / 2, SWIZZLE_64);
      const uint64_t numbers = statistics_operand(AT_STATISTICS + side * STATISTICS_BYTES);
#pragma unroll
      for (int h = 0; h < 4; h++) {
        const uint4 b = SHARED(uint4, AT_BIAS + mine + side * BIAS_BYTES + h * 512);
        const uint32_t words[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int n = 0; n < 4; n++)
          s[8 * h + 2 * n] = low_half(words[n]), s[8 * h + 2 * n + 1] = high_half(words[n]);
      }
      if (some_masked) {
        const float2 x = masks(i);
#pragma unroll
        for (int n = 0; n < 32; n++) s[n] += n & 2 ? x.y : x.x;
      }
      hold(s);
      hold(ds);
      mma_fence();
      const uint64_t ones = ones_operand(AT_ONES);
      mma_weights<1, 1>(s, ones, numbers);
#pragma unroll
      for (int h = 0; h < 2; h++)
        mma_weights<1, 0>(s, k_rows + h * (32 >> 4), q_rows + ((place * QUERY_BYTES + h * 32) >> 4));
      mma_weights<0, 1>(ds, ones, numbers + (64 >> 4));
#pragma unroll
      for (int h = 0; h < 2; h++)
        mma_weights(ds, v + 4 * h, grad_rows + ((place * QUERY_BYTES + h * 32) >> 4));
      mma_commit();
    };

    load_keys(0);
    start(0, 0);
#pragma unroll 1
    for (int i = 0, rows = 1; i < rows; i++) {
#pragma unroll
      for (int j = 0; j < BLOCKS; j++) {
        const int place = j % PLACES, side = (i * BLOCKS + j) & 1;
        const uint64_t grad_block = grad_rows + ((place * QUERY_BYTES) >> 4);
        const uint64_t q_block = q_rows + ((place * QUERY_BYTES) >> 4);
        // Logits and gradients of weights of this block are there; dK and dV have what the last block gave.
        mma_wait<0>();
        hold(s);
        hold(ds);
        hold(dk);
        hold(dv);
        // Where all keys weigh the same, logits are multiplied by zero: -lse is left.
        if (alike) {
          const float2 x = masks(i);
          const int numbers = AT_STATISTICS + side * STATISTICS_BYTES + (thread_id() & 3) * 4;
#pragma unroll
          for (int n = 0; n < 8; n++) {
            float minus_lse[2] = {0, 0};
#pragma unroll
            for (int c = 0; c < 3; c++) {
              const uint32_t word = SHARED(uint32_t, numbers + n * 128 + c * 16);
              minus_lse[0] += low_half(word), minus_lse[1] += high_half(word);
            }
#pragma unroll
            for (int e = 0; e < 4; e++)
              if ((e & 2 ? x.y : x.x) > 0.f) s[4 * n + e] = minus_lse[e & 1];
          }
        }
        __syncwarp();
        if (lane == 0) arrive(BLOCK_READ + 8 * side);
        // Weights, gradients of logits and the sums of these over rows.
#pragma unroll
        for (int n = 0; n < 8; n++) {
          const int at = AT_SUMS + mine + sums_place(j) * SUM_BYTES + sum_step(n);
          float4 sum;
          if (!sums_in_registers(j)) sum = SHARED(float4, at);
          float x[4];
#pragma unroll
          for (int e = 0; e < 4; e++) {
            if (UNIT) s[4 * n + e] *= LOG2E * bias_scale;
            s[4 * n + e] = exp2_of(s[4 * n + e]);
            x[e] = s[4 * n + e] * ds[4 * n + e];
            if (sums_in_registers(j)) in_registers[j / 2][4 * n + e] += x[e];
          }
          if (!sums_in_registers(j))
            SHARED(float4, at) = make_float4(sum.x + x[0], sum.y + x[1], sum.z + x[2], sum.w + x[3]);
          p_rounded[2 * n] = rounded(s[4 * n], s[4 * n + 1]);
          p_rounded[2 * n + 1] = rounded(s[4 * n + 2], s[4 * n + 3]);
          ds_rounded[2 * n] = rounded(x[0], x[1]);
          ds_rounded[2 * n + 1] = rounded(x[2], x[3]);
        }
        // Of the matrices of 8 keys x 8 queries that four threads store, this one's row.
        const int x = thread_id() - 128, line = (x >> 5) * 16 + (x & 15);
        const int ds_at = AT_DS + line * 128 + ((x & 16) ^ ((x << 4) & 0x70));
        wait(DS_EMPTY, side ^ 1);
#pragma unroll
        for (int h = 0; h < 4; h++) store_matrices(ds_at ^ (h << 5), ds_rounded + 4 * h);
        mma_fence();
#pragma unroll
        for (int h = 0; h < 4; h++) {
          if (j == 0 && h == 0)
            mma_keys<0>(dv, p_rounded, grad_block);
          else
            mma_keys<1>(dv, p_rounded + 4 * h, grad_block + h * (1024 >> 4));
        }
#pragma unroll
        for (int h = 0; h < 4; h++) {
          if (j == 0 && h == 0)
            mma_keys<0>(dk, ds_rounded, q_block);
          else
            mma_keys<1>(dk, ds_rounded + 4 * h, q_block + h * (1024 >> 4));
        }
        mma_commit();
        __syncwarp();
        if (lane == 0) arrive(DS_FULL);
        if (j < BLOCKS - 1) {
          start(i, j + 1);
        } else {
          // The next row's first products are under way while this row's dK and dV are stored.
          load_keys(i + 1);
          start(i + 1, 0);
          mma_wait<1>();
          hold(dk);
          hold(dv);
          const Work& own = SHARED(Work, AT_WORK);
          rows = own.rows;
          const int x = thread_id() - 128;
          const int key = own.tile * BLOCK_K + (x >> 5) * 16, left = num_keys - key, row = own.first_row + i;
          store_rows(dk, bias_scale,
                     grad_k + own.batch * k_batch + row * k_row + key * k_position + own.head * k_head,
                     k_position, left, channels, x & 31);
          store_rows(dv, 1.f,
                     grad_v + own.batch * v_batch + row * v_row + key * v_position + own.head * v_head,
                     v_position, left, channels, x & 31);
        }
      }
    }
    mma_wait<0>();
    hold(s);
    hold(ds);
    const Work own(num_rows, num_heads, program_id());
    const int x = thread_id() - 128, t = x & 3;
    const int key = own.tile * BLOCK_K + (x >> 5) * 16 + ((x & 31) >> 2);
    sums += (((long long)own.group * gridDim.y + own.batch) * num_heads + own.head) * num_queries * num_keys +
            key * sums_key;
#pragma unroll
    for (int j = 0; j < BLOCKS; j++) {
#pragma unroll
      for (int n = 0; n < 8; n++) {
        float4 sum;
        if (sums_in_registers(j)) {
          const float* y = in_registers[j / 2] + 4 * n;
          sum = make_float4(y[0], y[1], y[2], y[3]);
        } else {
          sum = SHARED(float4, AT_SUMS + mine + sums_place(j) * SUM_BYTES + sum_step(n));
        }
        const float of_key[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int query = j * BLOCK_Q + 8 * n + 2 * t + e;
#pragma unroll
          for (int f = 0; f < 2; f++)
            if (query < num_queries && key + 8 * f < num_keys)
              sums[query * sums_query + 8 * f * sums_key] = of_key[f][e] * bias_scale;
        }
      }
    }
  }
}
