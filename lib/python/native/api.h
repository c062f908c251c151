/* SPDX-License-Identifier: MIT */
/*
 * What of the C API the package binds, as cffi reads it. The compiler checks each line against the
 * headers; "..." leaves to it what Python does not touch.
 */
static char *const OMNIKV_VERSION;
const char *omnikv_version(void);

struct omnikv_error { char text[256]; };
struct omnikv_extent { uint64_t granule; uint32_t generation; uint32_t nr_granules; };

/* ---- layouts and plans ---- */
struct omnikv_plane {
	int role; int dtype; uint32_t heads; uint32_t elems; int shard_axis; bool is_replicated; ...;
};
struct omnikv_group {
	int kind; uint32_t nr_layers; uint32_t nr_planes; uint16_t layers[...]; int16_t alias_of[...];
	struct omnikv_plane planes[...]; uint32_t tokens_per_entry; uint32_t window; uint32_t sinks; int reuse; ...;
};
struct omnikv_layout {
	char name[64]; uint32_t nr_layers; uint32_t nr_groups; struct omnikv_group groups[...]; uint32_t block_tokens; ...;
};
struct omnikv_group_plan {
	uint32_t entries; uint32_t nr_stored; uint64_t plane_off[...]; uint64_t row_bytes[...]; uint64_t piece_bytes;
	uint64_t needed_bytes; uint64_t extent_bytes; uint32_t nr_granules; ...;
};
struct omnikv_plan {
	struct omnikv_layout layout; uint32_t block_tokens; uint32_t granule_bytes; uint32_t scale;
	struct omnikv_group_plan groups[...]; ...;
};
struct omnikv_plan_config { size_t size; uint32_t block_tokens; uint32_t granule_bytes; uint32_t scale; ...; };
const char *const *omnikv_layout_presets(void);
int omnikv_layout_preset(const char *name, struct omnikv_layout *layout, struct omnikv_error *err);
int omnikv_layout_parse(const char *json, size_t len, struct omnikv_layout *layout, struct omnikv_error *err);
int omnikv_layout_format(const struct omnikv_layout *layout, char **json);
int omnikv_layout_identity(const struct omnikv_layout *layout, uint8_t identity[32]);
int omnikv_layout_diff(const struct omnikv_layout *a, const struct omnikv_layout *b, struct omnikv_error *text);
double omnikv_layout_token_bytes(const struct omnikv_layout *layout);
uint64_t omnikv_layout_sequence_bytes(const struct omnikv_layout *layout);
uint32_t omnikv_dtype_bytes(int dtype);
const char *omnikv_group_kind_name(int kind);
const char *omnikv_plane_role_name(int role);
const char *omnikv_dtype_name(int dtype);
int omnikv_group_piece_idx(const struct omnikv_group *group, uint32_t layer);
int omnikv_plan_make(const struct omnikv_layout *layout, const struct omnikv_plan_config *config,
		     struct omnikv_plan *plan, struct omnikv_error *err);
double omnikv_plan_overhead(const struct omnikv_plan *plan);
uint64_t omnikv_plan_block_bytes(const struct omnikv_plan *plan);
int omnikv_plan_block_crc(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_tokens, const void *block, uint32_t *crc);

/* ---- keys and namespaces ---- */
#define OMNIKV_KEY_BYTES_MAX ...
#define OMNIKV_CHAIN_SECRET_BYTES_MIN ...
#define OMNIKV_CHAIN_BLOCK_TOKENS_MAX ...
#define OMNIKV_HASH_OPAQUE ...
#define OMNIKV_HASH_VLLM_SHA256_CBOR ...
#define OMNIKV_HASH_SGLANG_SHA256 ...
#define OMNIKV_HASH_FAST ...
struct omnikv_key { uint8_t bytes[32]; uint32_t len; };
struct omnikv_namespace {
	size_t size; const char *tenant; const char *weights; const char *adapter; const struct omnikv_layout *layout;
	uint32_t block_tokens; uint32_t hash_algorithm; const void *salt; size_t salt_len; uint64_t epoch; ...;
};
int omnikv_namespace_identity(const struct omnikv_namespace *ns, uint8_t identity[32]);
int omnikv_key_partial(const struct omnikv_key *key, uint32_t nr_tokens, struct omnikv_key *partial);
int64_t omnikv_chain_vllm(const char *seed, const uint32_t *tokens, size_t nr_tokens, uint32_t block_tokens,
			  const char *const *extra_keys, size_t nr_extra, struct omnikv_key *keys);
int64_t omnikv_chain_sglang(const uint32_t *tokens, size_t nr_tokens, uint32_t block_tokens, struct omnikv_key *keys);
struct omnikv_chain_key;
int omnikv_chain_key_create(const void *secret, size_t secret_len, uint32_t block_tokens, struct omnikv_chain_key **ck);
void omnikv_chain_key_destroy(struct omnikv_chain_key *ck);
struct omnikv_chain_state { uint64_t nr_blocks; ...; };
int64_t omnikv_chain_fast(const struct omnikv_chain_key *ck, struct omnikv_chain_state *state, const uint32_t *tokens,
			  size_t nr_tokens, struct omnikv_key *keys);

/* ---- pools ---- */
#define OMNIKV_POOL_F_REQUIRE_HUGE ...
#define OMNIKV_POOL_F_OPEN_ONLY ...
#define OMNIKV_POOL_F_NO_POPULATE ...
#define OMNIKV_POOL_F_NO_HUGETLB ...
#define OMNIKV_CLIENT_F_MANAGER ...
#define OMNIKV_EXTENT_FREE ...
#define OMNIKV_EXTENT_PRIVATE ...
#define OMNIKV_EXTENT_SEALED ...
#define OMNIKV_EXTENT_META ...
#define OMNIKV_EXTENT_QUARANTINED ...
#define OMNIKV_EXTENT_POISONED ...
struct omnikv_pool;
struct omnikv_client;
struct omnikv_pool_config {
	size_t size; uint32_t flags; uint32_t granule_bytes; uint32_t nr_threads; const char *numa;
	void (*notice)(void *opaque, const char *line); void *opaque; ...;
};
struct omnikv_pool_info {
	size_t size; uint64_t asked_bytes; uint64_t usable_bytes; uint64_t overhead_bytes; uint64_t free_bytes;
	uint64_t state_bytes[...]; uint64_t nr_extents[...]; uint64_t largest_free_bytes; uint64_t nr_granules;
	uint32_t granule_bytes; uint32_t nr_clients; uint32_t page_kind; uint32_t nr_nodes; uint8_t instance[16]; ...;
};
int omnikv_size_parse(const char *text, uint64_t *bytes, struct omnikv_error *err);
int omnikv_pool_open(const char *spec, const struct omnikv_pool_config *config, struct omnikv_pool **pool,
		     struct omnikv_error *err);
void omnikv_pool_close(struct omnikv_pool *pool);
int omnikv_pool_info(struct omnikv_pool *pool, struct omnikv_pool_info *info);
uint32_t omnikv_pool_granule_bytes(const struct omnikv_pool *pool);
void *omnikv_pool_addr(const struct omnikv_pool *pool, const struct omnikv_extent *ext);
int omnikv_client_open(struct omnikv_pool *pool, uint32_t flags, struct omnikv_client **client);
void omnikv_client_close(struct omnikv_client *client);
struct omnikv_pool *omnikv_client_pool(const struct omnikv_client *client);
int omnikv_extent_alloc(struct omnikv_client *client, uint32_t nr_granules, uint32_t count, const struct omnikv_extent *after,
			uint32_t flags, struct omnikv_extent *out);
int omnikv_extent_free(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);

/* ---- manager ---- */
struct omnikv_manager;
struct omnikv_space;
struct omnikv_match;
struct omnikv_spill;
struct omnikv_manager_config {
	size_t size; const char *eviction; struct omnikv_spill *spill; uint32_t spill_admit; ...;
};
int omnikv_manager_create(struct omnikv_client *client, const struct omnikv_manager_config *config,
			  struct omnikv_manager **manager, struct omnikv_error *err);
struct omnikv_attach_config {
	size_t size; uint32_t flags; uint32_t deadline_ms; uint64_t reserve_bytes; ...;
};
int omnikv_manager_attach(const char *socket, const struct omnikv_attach_config *config, struct omnikv_manager **manager,
			  struct omnikv_error *err);
int omnikv_manager_destroy(struct omnikv_manager *manager);
struct omnikv_client *omnikv_manager_client(const struct omnikv_manager *manager);
int omnikv_space_open(struct omnikv_manager *manager, const struct omnikv_namespace *ns, const struct omnikv_plan *plan,
		      struct omnikv_space **space, struct omnikv_error *notice);
void omnikv_space_close(struct omnikv_space *space);
int64_t omnikv_lookup(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys);
int omnikv_match(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys, const struct omnikv_key *tail,
		 struct omnikv_match **match);
uint64_t omnikv_match_blocks(const struct omnikv_match *match);
uint64_t omnikv_match_tokens(const struct omnikv_match *match);
uint32_t omnikv_match_tail_tokens(const struct omnikv_match *match);
void omnikv_match_put(struct omnikv_match *match);
int omnikv_space_note_tokens(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys, const uint32_t *tokens);
int omnikv_admit(struct omnikv_space *space, uint64_t nr_tokens);
int64_t omnikv_space_prefetch(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys);
#define OMNIKV_RETAIN_F_PIN ...
#define OMNIKV_PRIORITY_MAX ...
#define OMNIKV_RETAIN_MS_MAX ...
#define OMNIKV_NEXT_USE_NEVER ...
struct omnikv_retention {
	size_t size; uint32_t flags; uint32_t priority; uint64_t session; uint32_t ttl_ms; uint32_t next_use_ms; ...;
};
int64_t omnikv_space_retain(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
			    const struct omnikv_key *tail, const struct omnikv_retention *retention);
int omnikv_space_unretain(struct omnikv_space *space, uint64_t session);
#define OMNIKV_PROMISE_MS_MAX ...
int omnikv_space_promise(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys, uint32_t timeout_ms);
int omnikv_space_wait(struct omnikv_space *space, const struct omnikv_key *key, uint32_t timeout_ms);
int64_t omnikv_space_epoch(struct omnikv_space *space);
#define OMNIKV_GROUPS_MAX ...
struct omnikv_join {
	size_t size; const struct omnikv_key *key; const struct omnikv_key *parent; uint64_t position; uint32_t nr_tokens;
	uint32_t part; uint32_t nr_parts; uint32_t groups; const struct omnikv_extent *extents; const uint32_t *crcs;
	uint32_t timeout_ms; uint32_t epoch; ...;
};
int omnikv_commit_join(struct omnikv_space *space, const struct omnikv_join *join);
int64_t omnikv_manager_flush(struct omnikv_manager *manager);
int64_t omnikv_manager_reset(struct omnikv_manager *manager);
int64_t omnikv_manager_raise_epoch(struct omnikv_manager *manager);
struct omnikv_manager_stats {
	size_t size; uint64_t nr_queries; uint64_t tokens_queried; uint64_t tokens_hit; uint64_t blocks_queried;
	uint64_t blocks_hit; uint64_t blocks_committed; uint64_t blocks_deduplicated; uint64_t blocks_evicted;
	uint64_t hash_collisions; uint64_t nr_blocks; uint64_t nr_leased_blocks; uint64_t cached_bytes;
	uint64_t peak_used_bytes; double mean_run_blocks; uint64_t blocks_hit_nvme; uint64_t blocks_hit_recovered;
	uint64_t blocks_spilled; uint64_t bytes_spilled; uint64_t blocks_fetched; uint64_t bytes_fetched;
	uint64_t blocks_not_admitted; uint64_t blocks_lost; uint64_t blocks_bad; uint64_t extents_lost;
	uint64_t blocks_recovered; uint64_t blocks_dropped; uint64_t extents_freed; uint64_t index_bytes;
	uint64_t blocks_staged; uint64_t lookups_without_room; uint64_t blocks_imported; uint64_t blocks_published;
	uint64_t blocks_unpublished; uint64_t blocks_queued; uint64_t nr_retentions; uint64_t pinned_bytes;
	uint64_t pin_limit_bytes; uint64_t retained_bytes; uint64_t retentions_expired; uint64_t retentions_yielded; ...;
};
int omnikv_manager_stats(struct omnikv_manager *manager, struct omnikv_manager_stats *stats);
int omnikv_manager_shared_stats(struct omnikv_manager *manager, struct omnikv_manager_stats *stats);
int omnikv_manager_check(struct omnikv_manager *manager, struct omnikv_error *err);

/* ---- spill stores ---- */
struct omnikv_spill_config {
	size_t size; uint32_t flags; uint64_t capacity_bytes; const char *owner; struct omnikv_pool *pool;
	void (*notice)(void *opaque, const char *line); void *opaque; ...;
};
int omnikv_spill_open(const char *path, const struct omnikv_spill_config *config, struct omnikv_spill **spill,
		      struct omnikv_error *err);
void omnikv_spill_close(struct omnikv_spill *spill);

/* ---- devices and rings ---- */
struct omnikv_device;
struct omnikv_hbm;
struct omnikv_ring;
int omnikv_device_open(const char *name, const void *config, struct omnikv_device **dev, struct omnikv_error *err);
int omnikv_device_close(struct omnikv_device *dev);
int omnikv_hbm_attach(struct omnikv_device *dev, void *ptr, uint64_t bytes, struct omnikv_hbm **hbm);
int omnikv_hbm_destroy(struct omnikv_hbm *hbm);
uint64_t omnikv_hbm_bytes(const struct omnikv_hbm *hbm);
#define OMNIKV_CQE_F_MORE ...
#define OMNIKV_CQE_F_NOTIF ...
struct omnikv_piece { struct omnikv_extent extent; uint64_t extent_off; uint64_t device_off; uint64_t bytes; };
struct omnikv_sqe {
	uint8_t opcode; uint8_t flags; uint32_t nr_pieces; uint64_t user_data; uint64_t deadline_ns;
	const struct omnikv_piece *pieces; struct omnikv_hbm *hbm; uint64_t *valid; uint32_t *crc; ...;
};
struct omnikv_cqe { uint64_t user_data; int64_t res; uint32_t flags; uint32_t nr_valid; };
struct omnikv_ring_config { size_t size; uint32_t entries; uint32_t cq_entries; uint64_t spin_ns; uint64_t deadline_ns; ...; };
int omnikv_ring_init(struct omnikv_client *client, struct omnikv_device *dev, const struct omnikv_ring_config *config,
		     struct omnikv_ring **ring, struct omnikv_error *err);
void omnikv_ring_exit(struct omnikv_ring *ring);
struct omnikv_sqe *omnikv_get_sqe(struct omnikv_ring *ring);
int omnikv_submit(struct omnikv_ring *ring);
int omnikv_wait_cqe(struct omnikv_ring *ring, struct omnikv_cqe **cqe, uint64_t timeout_ns);
uint32_t omnikv_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);
void omnikv_cqe_seen(struct omnikv_ring *ring, struct omnikv_cqe *cqe);
void omnikv_prep_load(struct omnikv_sqe *sqe, struct omnikv_hbm *hbm, const struct omnikv_piece *pieces, uint32_t nr_pieces);
void omnikv_prep_store(struct omnikv_sqe *sqe, struct omnikv_hbm *hbm, const struct omnikv_piece *pieces, uint32_t nr_pieces);

/* ---- sequences ---- */
struct omnikv_seq;
int omnikv_seq_open(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys, const struct omnikv_key *tail,
		    struct omnikv_seq **seq);
void omnikv_seq_close(struct omnikv_seq *seq);
#define OMNIKV_SEQ_BATCH_MAX ...
struct omnikv_prefix { const struct omnikv_key *keys; size_t nr_keys; const struct omnikv_key *tail; };
int omnikv_seq_open_batch(struct omnikv_space *space, const struct omnikv_prefix *prefixes, size_t nr,
			  struct omnikv_seq **seqs);
uint64_t omnikv_seq_tokens(const struct omnikv_seq *seq);
uint64_t omnikv_seq_nvme_blocks(const struct omnikv_seq *seq);
uint64_t omnikv_seq_cached_tokens(const struct omnikv_seq *seq);
int omnikv_seq_append(struct omnikv_seq *seq, uint64_t nr_tokens);
int omnikv_seq_truncate(struct omnikv_seq *seq, uint64_t nr_tokens);
uint64_t omnikv_seq_checkpoint(const struct omnikv_seq *seq, uint64_t at_most);
int omnikv_seq_fork(struct omnikv_seq *seq, struct omnikv_seq **fork);
int64_t omnikv_seq_commit(struct omnikv_seq *seq, const struct omnikv_key *keys, size_t nr_keys, const struct omnikv_key *tail);
#define OMNIKV_GIVE_MS_MAX ...
struct omnikv_ticket { uint8_t bytes[16]; };
int omnikv_seq_give(struct omnikv_seq *seq, uint32_t timeout_ms, struct omnikv_ticket *ticket);
int omnikv_seq_take(struct omnikv_space *space, const struct omnikv_ticket *ticket, struct omnikv_seq **seq);
int64_t omnikv_seq_pieces(const struct omnikv_seq *seq, uint32_t group, uint32_t layer_idx, uint32_t plane, uint64_t from,
			  uint64_t to, uint64_t device_off, struct omnikv_piece *pieces, size_t max);
int omnikv_seq_block_crc(const struct omnikv_seq *seq, uint64_t block_idx, uint32_t group, uint32_t *crc);

/* ---- glue.c ---- */
void okv_py_pack_keys(struct omnikv_key *keys, const char *bytes, size_t nr_keys, uint32_t len);
int okv_py_has_negative(const uint32_t *ids, size_t nr);
void okv_py_block_pieces(struct omnikv_piece *out, const struct omnikv_piece *in, size_t nr_blocks, const uint32_t *slots,
			 uint64_t base_off, uint64_t slot_stride, uint32_t nr_regions, uint64_t region_stride, uint64_t region_bytes);
uint32_t okv_py_sum(const uint32_t *crc, size_t nr, uint64_t bytes_each);
uintptr_t okv_py_dlpack(uintptr_t owner, void *data, int32_t code, int32_t bits, int32_t ndim, const int64_t *shape,
			int is_versioned, int is_readonly);
void free(void *ptr);
extern "Python" void okv_py_notice(void *opaque, const char *line);
