;; Answers with what the request's subject says: two letters for a byte (`a` to `p`, high half first), first where
;; the answer lies, then the memory from BASE on.
(func $half (param $at i32) (result i32)
  (i32.and (i32.sub (i32.load8_u (local.get $at)) (i32.const 97)) (i32.const 15)))
(func $byte (param $at i32) (result i32)
  (i32.or
    (i32.shl (call $half (local.get $at)) (i32.const 4))
    (call $half (i32.add (local.get $at) (i32.const 1)))))
(func $evaluate (param $request i32) (result i32)
  (local $from i32) (local $end i32) (local $to i32) (local $answer i32)
  (if (call $tried (local.get $request)) (then (return (global.get $decision))))
  (local.set $from (i32.load offset=16 (local.get $request)))
  (local.set $end (i32.add (local.get $from) (i32.load offset=20 (local.get $request))))
  (local.set $answer
    (i32.or
      (i32.or (call $byte (local.get $from)) (i32.shl (call $byte (i32.add (local.get $from) (i32.const 2))) (i32.const 8)))
      (i32.or
        (i32.shl (call $byte (i32.add (local.get $from) (i32.const 4))) (i32.const 16))
        (i32.shl (call $byte (i32.add (local.get $from) (i32.const 6))) (i32.const 24)))))
  (local.set $from (i32.add (local.get $from) (i32.const 8)))
  (local.set $to (i32.const BASE))
  (block $done
    (loop $next
      (br_if $done (i32.ge_u (local.get $from) (local.get $end)))
      (i32.store8 (local.get $to) (call $byte (local.get $from)))
      (local.set $from (i32.add (local.get $from) (i32.const 2)))
      (local.set $to (i32.add (local.get $to) (i32.const 1)))
      (br $next)))
  (local.get $answer))
