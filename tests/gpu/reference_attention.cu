// Attention of a batch of decodes over KV blocks by its definition: a thread for each number of the result, nothing
// shared, sums in double. Compiled by NVRTC on a GPU, and by a C++ compiler where grid and block are loops.
extern "C" __global__ void attend(const float* queries, const float* cache, const int* tables, int table_width,
                                  const int* lengths, float* out, int layer, int layers, int slots, int kv_heads,
                                  int group, int dim, int window, double scale) {
  const int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x, heads = kv_heads * group;
  const int length = lengths[row], first = length > window ? length - window : 0;
  const float* query = queries + (static_cast<long long>(row) * heads + head) * dim;
  double largest = -1e300, total = 0, sum = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int place = first; place < length; ++place) {
      const long long block = tables[row * table_width + place / slots], width = kv_heads * dim;
      const float* key = cache + (block * layers + layer) * (2 * slots * width) + (place % slots) * width;
      key += head / group * dim;
      double score = 0;
      for (int i = 0; i < dim; ++i) score += static_cast<double>(query[i]) * key[i];
      score *= scale;
      if (pass == 0) {
        largest = score > largest ? score : largest;
        continue;
      }
      const double weight = exp(score - largest);
      total += weight;
      sum += weight * key[slots * width + lane];
    }
  }
  out[(static_cast<long long>(row) * heads + head) * dim + lane] = length > 0 ? static_cast<float>(sum / total) : 0.0F;
}
