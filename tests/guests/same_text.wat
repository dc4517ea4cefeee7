;; Warns a thousand times with one and the same text of 64 KiB: little for the guest, 64 MB for the host.
(func $evaluate (param $request i32) (result i32)
  (local $n i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then
      (drop (memory.grow (i32.sub (i32.const 100) (memory.size))))
      (i32.store offset=64 (global.get $decision) (i32.const 1048576))
      (i32.store offset=68 (global.get $decision) (i32.const 1000))
      (loop $next
        (i32.store offset=1048576 (i32.shl (local.get $n) (i32.const 3)) (i32.const 2097152))
        (i32.store offset=1048580 (i32.shl (local.get $n) (i32.const 3)) (i32.const 65536))
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $next (i32.lt_u (local.get $n) (i32.const 1000))))))
  (global.get $decision))
