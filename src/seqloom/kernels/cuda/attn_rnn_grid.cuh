// AttnRNN's units on blocks anywhere on the GPU, 32 to each, which share what they find through packets in its memory.
// A warp has both tiles of the block's units, and of every sum the units of four other blocks: what these send is its B of mma as it
// comes, a lane's words from one of them. So nobody waits for all blocks, and nothing that is shared passes through shared memory.
// A row of a block, 16 words of two units, is six packets in two halves: words 8half .. 8half + 7, and a sum over the row.
// A packet is written anew only when all blocks have read it: of the messages in a step, whoever sends one has had the one
// before it from everyone; where what is attended is not sent, sums over heads are the one before, and every block asks for all.
// Parts of sums lie in two places in turn, and so do barriers: some warp may be at the next product already.
// What is pointwise has 16 lanes to a row; of two teams, a warp has two rows of one.
constexpr int SOURCES = 4, PACKETS = 6, DEEP = TALL * 8;        // blocks to a warp, packets of each, tiles of a weight
constexpr int AT_WEIGHTS = 2 * PARTS, CLUSTER_BYTES = AT_WEIGHTS + (KEPT * DEEP + SPARE) * WARPS * WORDS * 128;
constexpr int MESSAGE = ROWS * SPLIT * PACKETS * SOURCES, SCORES = ROWS * CLUSTER * PIECES;  // packets of one of the three in a step, of the sums over heads
constexpr int GROUP = 3 * MESSAGE + SCORES;                     // all of them
constexpr int NEAR = SPAN > 8 ? 16 : SPAN > 4 ? 8 : SPAN > 2 ? 4 : SPAN, FAR = (SPAN + NEAR - 1) / NEAR;  // lanes that ask for the blocks of a head, times
constexpr int SOON = TEAMS == 1 ? 12 : 0, SOON_BACK = TEAMS == 1 && SPAN < 32 ? 4 : 0;  // tiles of a weight in shared memory that there are registers for while blocks wait
constexpr int CROWD = 9;                                        // rows that would be in each other's way if all of them asked all the time
constexpr bool EARLY = false, CROSSED = true;                   // sums over a row are there after a barrier, heads lie in several blocks
// Where a block's units have one head, what is attended is made by whoever needs it, from sums over heads, h and x: it is not sent.
constexpr int CLOSE = SPAN % 4 == 0 ? 4 : SPAN == 2 ? 2 : 1, ASKS = SPAN / CLOSE;  // lanes of a row that ask for a head's sums, packets of each
constexpr bool MIXES = D % UNITS == 0 && ASKS <= 8;
constexpr int MIXTURE = SECOND;
static_assert(TYPE != FP32 && EACH == 2 && TALL == 2 && LANES == 16 && SPLIT == 8 && CLUSTER <= 32, "no such group");

struct Block : Units {
  Packet *packets, *inbox;  // of the group, and where this lane's begin
  u32 turn[TEAMS] = {}, word = 0, v[8][2];  // messages that were taken of a team; two units that wait for a sum to go with them; B
  u32 kept[TEAMS][8][2];    // h, as B
  int rows, teams, taken = 0, with_sums = -1;
  float sums[2];
  bool sends;               // whether this lane has a row
  template <class Args> DEV Block(const Args &a) : Units(a.begin, a.each) {
    packets = a.packets + (i64)(block() / CLUSTER) * GROUP;
    inbox = as_it_is(packets + (row * SPLIT + slice) * PACKETS * SOURCES + pair);
    rows = a.B - first < a.each ? (a.B > first ? a.B - first : 0) : a.each;
    teams = rows > 8 ? TEAMS : 1;
    works = TEAMS * warp < rows;
    column = TEAMS == 2 ? 2 * warp + lane / 16 : warp;
    team = TEAMS == 2 ? warp / 4 : 0;
    sends = column < rows && (TEAMS == 2 || lane < 16);
    unit = base + 2 * (lane % 16);
    there = sends && unit < H;
    unit = there ? unit : base;
  }
  DEV void open() const {}
  DEV void close() const {}
  DEV void expect_all(int with, int = -1) { with_sums = with; }  // sums over a row go with one of the messages
  DEV int source() const { return SOURCES * slice + pair; }  // the block whose words this lane takes

  DEV bool asks(int g) const { return 8 * g + row < rows && source() < CLUSTER; }  // whether there is such a block, and a row of a team's
  // Until packets with these numbers have come to all lanes, all asked for at once, and then those that are missing; 0: nothing will
  // come. If all asked all the time, those that send would wait for them: until a first one is there, one row asks for its first.
  template <bool MANY, int N> DEV void collect(u32 (&p)[N][4], const Packet *const (&from)[N], const u32 (&numbers)[N]) const {
    bool all = true, missing = true;
#pragma unroll 1
    for (int i = 0; any_lane(missing); i++) {
      if (i == PATIENCE) give_up();
#pragma unroll
      for (int k = 0; k < N; k++) if (p[k][3] != numbers[k] && (all || (k == 0 && row == 0))) get_packet(p[k], from[k]);
      missing = false;
#pragma unroll
      for (int k = 0; k < N; k++) missing |= p[k][3] != numbers[k];
      all = !MANY || rows < CROWD || any_lane(numbers[0] && p[0][3] == numbers[0]);
    }
  }
  DEV void begin(int message, int g) {
    turn[g]++;
    taken = message;
    parts = memory + (turn[g] & 1) * PARTS;
  }
  DEV void take(int buffer, u32, int g) {
    u32 p[PACKETS][4] = {}, numbers[PACKETS];
    const Packet *from[PACKETS];
    begin(buffer, g);
#pragma unroll
    for (int k = 0; k < PACKETS; k++) {
      from[k] = inbox + buffer * MESSAGE + (8 * g * SPLIT * PACKETS + k) * SOURCES;
      numbers[k] = asks(g) ? turn[g] : 0u;
    }
    collect<true>(p, from, numbers);
#pragma unroll
    for (int i = 0; i < 16; i++) v[i / 2][i % 2] = p[3 * (i / 8) + i % 8 / 3][i % 8 % 3];
    if (buffer == FIRST)
#pragma unroll
      for (int i = 0; i < 16; i++) kept[g][i / 2][i % 2] = v[i / 2][i % 2];
    sums[0] = number(p[2][2]); sums[1] = number(p[5][2]);
  }
  // A warp that takes from no block would run away from the others.
  DEV void gather(int g) const { Units::gather(mine(g) || SOURCES * slice >= CLUSTER, 1 + g + TEAMS * (turn[g] & 1)); }
  DEV u32 next() const { return 1 + (TEAMS == 2 && team ? turn[TEAMS - 1] : turn[0]); }  // the number of what this warp's team sends
  // Two units of this lane to all blocks; and two sums over this block's units with them.
  DEV void share(int buffer, Pair two) {
    word = there ? two : 0u;
    if (!NORM || buffer != with_sums) send(buffer, 0.f);
  }
  DEV void share_sums(int buffer, float v, float w) { send(buffer, over_lanes(v, w)); }
  DEV void share_spread(int buffer, const float (&z)[2]) { share_sums(buffer, z[0] + z[1], z[0] * z[0] + z[1] * z[1]); }
  DEV void send(int buffer, float s) const {  // a packet by each of six lanes
    const int i = lane % 16 < PACKETS ? lane % 16 : 0, half = i / 3, which = i % 3, from = (lane & 16) + 8 * half + 3 * which;
    const float w = number(word), sum = from_lane(s, (lane & 16) + 8 * half);
    const float a = from_lane(w, from), b = from_lane(w, from + 1), c = from_lane(w, from + 2 & 31);
    Packet *to = packets + buffer * MESSAGE + ((column * SPLIT + rank / SOURCES) * PACKETS + i) * SOURCES + rank % SOURCES;
    if (sends && lane % 16 < PACKETS) put_packet(to, bits(a), bits(b), bits(which == 2 ? sum : c), next());
  }
  DEV void put_part(const Sums &c, int g) const {
    Units::put_part(c, g);
    if (NORM && taken == with_sums) {
      float s[2];
#pragma unroll
      for (int e = 0; e < 2; e++) { s[e] = sums[e] + from_other(sums[e], 1); s[e] += from_other(s[e], 2); }
      if (pair == 0) put_shared(parts + 4 * ((slice * ROWS + 8 * g + row) * LINE + UNITS), s[0], s[1]);
    }
  }
  DEV void get_sums(float &v, float &w) const {
    v = w = 0.f;
#pragma unroll
    for (int i = 0; i < SPLIT; i++) {
      float p, q;
      get_shared(p, q, parts + 4 * ((i * ROWS + column) * LINE + UNITS));
      v += p; w += q;
    }
  }
  DEV void get_spread(float &mean, float &r) const { get_sums(mean, r); spread(mean, r); }
  // Sums of three over the units of the lane's head: a packet from each block that has some.
  DEV void share_scores(const float (&p)[3][2]) const {
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      const float sum = over_head(p, j), a = from_lane(sum, lane & 16), b = from_lane(sum, (lane & 16) + 4), c = from_lane(sum, (lane & 16) + 8);
      if (sends && lane % 16 == j) put_packet(packets + 3 * MESSAGE + (column * CLUSTER + rank) * PIECES + j, bits(a), bits(b), bits(c), next());
    }
  }
  DEV void get_scores(float (&s)[PER][3], u32) const {
    const Packet *scores = packets + 3 * MESSAGE, *at = scores + column * CLUSTER * PIECES;
    const int home = base / D, end = base + UNITS < H ? base + UNITS : H;
    u32 v[PIECES * FAR][4] = {}, numbers[PIECES * FAR];
    const Packet *from[PIECES * FAR];
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
      const int begin = (home + j) * D, last = (begin + D - 1) / UNITS;
#pragma unroll
      for (int i = 0; i < FAR; i++) {
        const int other = begin / UNITS + NEAR * i + lane % NEAR;
        const bool sent = sends && begin < end && other <= last;
        from[j * FAR + i] = sent ? at + other * PIECES + home + j - other * UNITS / D : scores;
        numbers[j * FAR + i] = sent ? next() : 0u;
      }
    }
    collect<false>(v, from, numbers);
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
      for (int j = 0; j < PIECES; j++) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < FAR; i++) sum += number(v[j * FAR + i][k]);
#pragma unroll
        for (int bits = NEAR / 2; bits; bits /= 2) sum += from_other(sum, bits);
#pragma unroll
        for (int e = 0; e < PER; e++) if (j == 0 || (unit + e) / D == home + j) s[e][k] = sum;
      }
  }

  // Where blocks mix for themselves. The same sums, but of this lane's row and source of B; and for the lanes that have units here.
  DEV void take_scores(float (&s)[3], int g) {
    u32 p[ASKS][4] = {}, numbers[ASKS];
    const Packet *from[ASKS], *at = packets + 3 * MESSAGE + (8 * g + row) * CLUSTER + source() / SPAN * SPAN + pair % CLOSE;
    begin(-1, g);
#pragma unroll
    for (int i = 0; i < ASKS; i++) { from[i] = at + CLOSE * i; numbers[i] = asks(g) ? turn[g] : 0u; }
    collect<false>(p, from, numbers);
#pragma unroll
    for (int k = 0; k < 3; k++) {
      s[k] = 0.f;
#pragma unroll
      for (int i = 0; i < ASKS; i++) s[k] += number(p[i][k]);
#pragma unroll
      for (int bits = CLOSE / 2; bits; bits /= 2) s[k] += from_other(s[k], bits);
    }
  }
  template <class F> DEV void take_mixed(const Element *x, i64 x_row, u32, int g, F coefficients_of) {
    u32 w[8][2];
    float s[3], c[3];
    get_words(w, x + (asks(g) ? first + 8 * g + row : 0) * x_row, g);
    take_scores(s, g);
    coefficients_of(c, s, 0);
    mix(c, w, g);
  }
  DEV void tell_all() const {}
  DEV void fetch_units(const Element *, int) const {}
  DEV void units_here() const {}
  // The words of this lane's source, of a row that begins here.
  DEV void get_words(u32 (&w)[8][2], const Element *line, int g) const {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float four[4] = {};
      if (asks(g)) get_global(four, (const float *)(line + UNITS * source() + 8 * j));  // two loads share 32 bytes: they are kept nearby
#pragma unroll
      for (int i = 0; i < 4; i++) w[2 * j + i / 2][i % 2] = bits(four[i]);
    }
  }
  // B = of[0] h + x (of[1] + of[2] h).
  DEV void mix(const float (&of)[3], const u32 (&x)[8][2], int g) {
    const u32 a = to_pair(of[0], of[0]), b = to_pair(of[1], of[1]), c = to_pair(of[2], of[2]);
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const u32 h = kept[g][i / 2][i % 2];
      v[i / 2][i % 2] = fma_pairs<TYPE>(x[i / 2][i % 2], fma_pairs<TYPE>(c, h, b), fma_pairs<TYPE>(a, h, 0u));
    }
  }
};
