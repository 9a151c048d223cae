// AttnRNN's units divided among blocks of the grid: pack values into packets, and unpack received packets.
#pragma once
#include "attn_rnn/grid_post.cuh"

struct Block : Post {
  Pair pending{};                    // units to send later, together with sums over the row
  Words v, state_words[ROW_GROUPS];  // the last message received, and h; both as the B operand
  float sums[ROUNDS][2];
  int with_sums = -1;
  template <class Args>
  DEV Block(const Args& a) : Post(a) {}
  // Set which of a step's messages also carries the sums over a row.
  DEV void expect_all(int with, int = -1) { with_sums = with; }
  DEV void take(int buffer, u32, int g) {
    u32 p[LANE_PACKETS][4] = {}, numbers[LANE_PACKETS];
    const Packet* from[LANE_PACKETS];
    begin(buffer, g);
#pragma unroll
    for (int k = 0; k < LANE_PACKETS; k++) {
      from[k] =
          inbox + buffer * MESSAGE + (8 * g * SPLIT * PACKETS + k % PACKETS) * SOURCES + 4 * (k / PACKETS);
      numbers[k] = is_expected(k / PACKETS, g) ? message_count[g] : 0u;
    }
    collect<true>(p, from, numbers, rows, row);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
#pragma unroll
      for (int i = 0; i < 16; i++)
        v[(16 * r + i) / SIZE][i % SIZE] = p[PACKETS * r + 3 * (i / 8) + i % 8 / 3][i % 8 % 3];
      sums[r][0] = to_float(p[PACKETS * r + 2][2]);
      sums[r][1] = to_float(p[PACKETS * r + 5][2]);
    }
    if (buffer == FIRST)
#pragma unroll
      for (int i = 0; i < 16 * ROUNDS; i++) state_words[g][i / SIZE][i % SIZE] = v[i / SIZE][i % SIZE];
  }
  // Send this lane's two units to all blocks. If the message also carries sums over a row, keep the units
  // until share_sums or share_moments sends both.
  DEV void share(int buffer, Pair v) {
    pending = active ? v : Pair{};
#if FORMAT == 2 && TF32
    pending = {to_float(to_tf32(pending.low)), to_float(to_tf32(pending.high))};
#endif
    if (!NORM || buffer != with_sums) send(buffer, 0.f, 0.f);
  }
  // Sum v and w over the lanes of each source of a row and send them: v in the first three packets of the
  // source, w in the last three. With one source, sum_lanes leaves the sum of v in the first half of the
  // row's lanes and that of w in the second half.
  DEV void share_sums(int buffer, float v, float w) {
    if constexpr (BLOCK_SOURCES == 1) {
      const float s = sum_lanes(v, w);
      send(buffer, s, s);
    } else
      send(buffer, sum_source(v), sum_source(w));
  }
  DEV float sum_source(float v) const {  // with two sources per block: 8 lanes each
#pragma unroll
    for (int bits = 4; bits; bits /= 2) v += shuffle_xor(v, bits);
    return v;
  }
  // Return a word of this row from the lane that holds it.
  DEV u32 read_word(int word) const {
    const int row = lane & 16;
#if FORMAT == 2
    const float low = shuffle(pending.low, row + word / 2 % 16),
                high = shuffle(pending.high, row + word / 2 % 16);
    return to_bits(word & 1 ? high : low);
#else
    return to_bits(shuffle(to_float(pending), row + word % 16));
#endif
  }
  // Send the six packets of each source, one from each of six lanes. With one source, v and w are equal: the
  // first half of the row's lanes holds the sum for packets 0..2, the second half that for packets 3..5.
  DEV void send(int buffer, float v, float w) const {
    const bool has_packet = lane % 16 < BLOCK_SOURCES * PACKETS;
    const int at = has_packet ? lane % 16 / PACKETS : 0, i = has_packet ? lane % 16 % PACKETS : 0;
    const int half = i / 3, which = i % 3, from = 16 * at + 8 * half + 3 * which,
              source = BLOCK_SOURCES * rank + at;
    u32 sum;
    if constexpr (BLOCK_SOURCES == 1)
      sum = to_bits(shuffle(v, (lane & 16) + 8 * half));
    else {
      const float first = shuffle(v, (lane & 16) + 8 * at), second = shuffle(w, (lane & 16) + 8 * at);
      sum = to_bits(half ? second : first);
    }
    const u32 a = read_word(from), b = read_word(from + 1), c = read_word(from + 2);
    Packet* to = packets + buffer * MESSAGE + ((column * SPLIT + source / SOURCES) * PACKETS + i) * SOURCES +
                 source % SOURCES;
    if (sends && has_packet) put_packet(to, a, b, which == 2 ? sum : c, next_number());
  }
  DEV float sum_sources(float s) const {
    s += shuffle_xor(s, 1);
    return s + shuffle_xor(s, 2);
  }
  DEV void put_part(const Sums& c, int g) const {
    Units::put_part(c, g);
    if (NORM && last_message == with_sums) {
      float s[2] = {sums[0][0], sums[0][1]};
#pragma unroll
      for (int r = 1; r < ROUNDS; r++) {
        s[0] += sums[r][0];
        s[1] += sums[r][1];
      }
      s[0] = sum_sources(s[0]);
      if (CENTERS_SQUARES && last_message == THIRD) {
        const float mean = s[0] * (1.f / count_units(slice));
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
          const float difference = sums[r][0] * (1.0f / SOURCE_UNITS) - mean;
          if (is_expected(r, g)) s[1] += SOURCE_UNITS * (difference * difference);
        }
      }
      s[1] = sum_sources(s[1]);
      if (pair == 0) put_shared(parts + 4 * ((slice * ROWS + 8 * g + row) * LINE + UNITS), s[0], s[1]);
    }
  }
  DEV void get_sums(float& v, float& w) const {
    v = w = 0.f;
#pragma unroll
    for (int i = 0; i < SPLIT; i++) {
      float p, q;
      get_shared(p, q, parts + 4 * ((i * ROWS + column) * LINE + UNITS));
      v += p;
      w += q;
    }
  }
  // Compute the mean and 1 / deviation of a row from the sums and sums of squares that the third message of a
  // step carries. In float32, E[z^2] - mean^2 would lose digits by cancellation: each source sums squared
  // deviations from its own mean, and each warp combines those of its sources relative to the mean of its
  // split-K slice.
  DEV int count_units(int slice) const {
    const int n = H - slice * SOURCES * SOURCE_UNITS;
    return n < 1 ? 1 : n < SOURCES * SOURCE_UNITS ? n : SOURCES * SOURCE_UNITS;
  }
  DEV void share_moments(int buffer, const float (&z)[2]) {
    if constexpr (CENTERS_SQUARES) {
      const auto add = [&](float v) { return BLOCK_SOURCES == 1 ? sum_lanes(v, v) : sum_source(v); };
      const float sum = add(z[0] + z[1]), mean = sum * (1.0f / SOURCE_UNITS);
      const float v = active ? z[0] - mean : 0.f, w = active ? z[1] - mean : 0.f, square = add(v * v + w * w),
                  both = lane & LANES / 2 ? square : sum;
      send(buffer, BLOCK_SOURCES == 1 ? both : sum, BLOCK_SOURCES == 1 ? both : square);
    } else
      share_sums(buffer, z[0] + z[1], z[0] * z[0] + z[1] * z[1]);
  }
  DEV void get_moments(float& mean, float& r) const {
    get_sums(mean, r);
    if constexpr (CENTERS_SQUARES) {
      mean *= 1.0f / REAL_H;
#pragma unroll
      for (int i = 0; i < SPLIT; i++) {
        const float n = count_units(i),
                    difference =
                        get_shared(parts + 4 * ((i * ROWS + column) * LINE + UNITS)) * (1.f / n) - mean;
        if (i * SOURCES < ALL_SOURCES) r += n * (difference * difference);
      }
      r = 1.f / sqrtf((r - PADDING * mean * mean) * (1.0f / REAL_H) + 1e-5f);
    } else
      find_moments(mean, r);
  }
  // Sum three values over the units of the lane's head: each block that has such units sends one packet.
  DEV void share_scores(const float (&p)[3][2]) const {
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      const float sum = sum_head(p, j), a = shuffle(sum, lane & 16), b = shuffle(sum, (lane & 16) + 4),
                  c = shuffle(sum, (lane & 16) + 8);
      if (sends && lane % 16 == j)
        put_packet(packets + 3 * MESSAGE + (column * CLUSTER + rank) * PIECES + j, to_bits(a), to_bits(b),
                   to_bits(c), next_number());
    }
  }
  DEV void get_scores(float (&s)[PER][3], u32) const {
    const Packet *scores = packets + 3 * MESSAGE, *at = scores + column * CLUSTER * PIECES;
    const int home = base / D, end = base + UNITS < H ? base + UNITS : H;
    u32 v[PIECES * SCORE_ROUNDS][4] = {}, numbers[PIECES * SCORE_ROUNDS];
    const Packet* from[PIECES * SCORE_ROUNDS];
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      const int begin = (home + j) * D, last = (begin + D - 1) / UNITS;
#pragma unroll
      for (int i = 0; i < SCORE_ROUNDS; i++) {
        const int other = begin / UNITS + SCORE_LANES * i + lane % SCORE_LANES;
        const bool arrives = sends && begin < end && other <= last;
        from[j * SCORE_ROUNDS + i] = arrives ? at + other * PIECES + home + j - other * UNITS / D : scores;
        numbers[j * SCORE_ROUNDS + i] = arrives ? next_number() : 0u;
      }
    }
    collect<false>(v, from, numbers, rows, row);
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
      for (int j = 0; j < PIECES; j++) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < SCORE_ROUNDS; i++) sum += to_float(v[j * SCORE_ROUNDS + i][k]);
#pragma unroll
        for (int bits = SCORE_LANES / 2; bits; bits /= 2) sum += shuffle_xor(sum, bits);
#pragma unroll
        for (int e = 0; e < PER; e++)
          if (j == 0 || (unit + e) / D == home + j) s[e][k] = sum;
      }
  }

  // If aC is not sent: receive the same sums, for the row and the sources of this lane's B fragment.
  DEV void take_scores(float (&s)[ROUNDS][3], int g) {
    u32 p[ROUNDS * HEAD_PACKETS][4] = {}, numbers[ROUNDS * HEAD_PACKETS];
    const Packet* from[ROUNDS * HEAD_PACKETS];
    begin(-1, g);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
      const Packet* at = packets + 3 * MESSAGE + (8 * g + row) * CLUSTER +
                         source(r) / BLOCK_SOURCES / SPAN * SPAN + pair % HEAD_LANES;
#pragma unroll
      for (int i = 0; i < HEAD_PACKETS; i++) {
        from[HEAD_PACKETS * r + i] = at + HEAD_LANES * i;
        numbers[HEAD_PACKETS * r + i] = is_expected(r, g) ? message_count[g] : 0u;
      }
    }
    collect<false>(p, from, numbers, rows, row);
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
      for (int r = 0; r < ROUNDS; r++) {
        s[r][k] = 0.f;
#pragma unroll
        for (int i = 0; i < HEAD_PACKETS; i++) s[r][k] += to_float(p[HEAD_PACKETS * r + i][k]);
#pragma unroll
        for (int bits = HEAD_LANES / 2; bits; bits /= 2) s[r][k] += shuffle_xor(s[r][k], bits);
      }
  }
  template <class F>
  DEV void take_mixture(const Element* x, i64 x_row, u32, int g, F find_coefficients) {
    Words w;
    float s[ROUNDS][3], c[3];
    get_words(w, x + (is_expected(0, g) ? first + 8 * g + row : 0) * x_row, g);
    take_scores(s, g);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
      find_coefficients(c, s[r], 0);
      const u32 words[3] = {to_word(c[0]), to_word(c[1]), to_word(c[2])};
#pragma unroll
      for (int i = 16 * r; i < 16 * r + 16; i++)
        v[i / SIZE][i % SIZE] = mix(words, state_words[g][i / SIZE][i % SIZE], w[i / SIZE][i % SIZE]);
    }
  }
  DEV void send_to_all() const {}
  DEV void fetch_units(const Element*, int) const {}
  DEV void wait_units() const {}
  // Load this lane's words of its sources from the row that begins at `line`.
  DEV void get_words(Words& w, const Element* line, int g) const {
#pragma unroll
    for (int j = 0; j < 4 * ROUNDS; j++) {
      float four[4] = {};
      // two loads share a sector of 32 bytes
      if (is_expected(j / 4, g))
        get_global(four, (const float*)(line + SOURCE_UNITS * source(j / 4) + 16 / SIZE * (j % 4)));
#pragma unroll
      for (int i = 0; i < 4; i++) w[(4 * j + i) / SIZE][(4 * j + i) % SIZE] = to_bits(four[i]);
    }
  }
};
// Load weight tile k: row tile k % TALL of the block and column tile k / TALL. A lane's columns are four
// consecutive units of one source.
DEV void load_tile(u32 (&w)[WORDS], const Element* W, int stride, int k, const Block& b) {
  const int n = k / TALL, r = b.base + 16 * (k % TALL) + b.row,
            c = SOURCE_UNITS * b.source(4 * n * SIZE / 64) + 4 * n % SOURCE_UNITS;
  const bool active = r < H && c < H;
  const Element* p = W + (active ? (i64)r * stride + c : 0);
#if FORMAT == 2
  float v[2][4] = {};
  if (active) {
    get_global(v[0], p);
    get_global(v[1], p + (i64)8 * stride);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) w[i] = TF32 ? to_tf32(v[i & 1][i / 2]) : to_bits(v[i & 1][i / 2]);
#else
  float v[4] = {};
  if (active) {
    get_global(v[0], v[2], (const float*)p);
    get_global(v[1], v[3], (const float*)(p + 8 * stride));
  }
#pragma unroll
  for (int i = 0; i < 4; i++) w[i] = to_bits(v[i]);
#endif
}
template <int COUNT>
DEV void load_buffer(u32 (&v)[COUNT][SIZE], int, int, int from, const Block& b) {
#pragma unroll
  for (int k = 0; k < COUNT; k++)
#pragma unroll
    for (int i = 0; i < SIZE; i++) v[k][i] = b.v[from + k][i];
}
