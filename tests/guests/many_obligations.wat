;; Demands read-only a hundred thousand times, all of it in its own memory.
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then
      (drop (memory.grow (i32.sub (i32.const 100) (memory.size))))
      (i32.store offset=48 (global.get $decision) (i32.const 1048576))
      (i32.store offset=52 (global.get $decision) (i32.const 100000))))
  (global.get $decision))
