;; What every test policy is made of. The harness fills in pages, heap and data, and adds a default for each of
;; $start, $describe, $configure and $evaluate that a guest's own file does not define.
(module
  (memory (export "memory") PAGES)
  (table $table 1 funcref)
  ;; The next free byte for what the host passes in.
  (global $heap (mut i32) (i32.const HEAP))
  ;; Where the prepared answers lie.
  (global $description i32 (i32.const DESCRIPTION))
  (global $buckets i32 (i32.const BUCKETS))
  (global $decision i32 (i32.const DECISION))
  (global $obligations i32 (i32.const OBLIGATIONS))
  (data (i32.const BASE) "DATA")

  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (local $at i32)
    (local.set $at
      (i32.and
        (i32.add (global.get $heap) (i32.sub (local.get $align) (i32.const 1)))
        (i32.sub (i32.const 0) (local.get $align))))
    (global.set $heap (i32.add (local.get $at) (local.get $size)))
    (if (i32.gt_u (global.get $heap) (i32.shl (memory.size) (i32.const 16)))
      (then
        (drop (memory.grow (i32.add (i32.shr_u (local.get $size) (i32.const 16)) (i32.const 1))))))
    (local.get $at))

  ;; Whether the request is the one a policy is tried on when it is loaded: operation `doctor`, of six bytes.
  (func $tried (param $request i32) (result i32)
    (i32.eq (i32.load offset=8 (local.get $request)) (i32.const 6)))

  GUEST

  (export "describe" (func $describe))
  (export "configure" (func $configure))
  (export "evaluate" (func $evaluate)))
