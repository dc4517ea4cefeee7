;; Denies with a message of ten megabytes.
(func $evaluate (param $request i32) (result i32)
  (if (i32.eqz (call $tried (local.get $request)))
    (then
      (drop (memory.grow (i32.sub (i32.const 200) (memory.size))))
      (i32.store8 (global.get $decision) (i32.const 2))
      (i32.store offset=16 (global.get $decision) (i32.const 1048576))
      (i32.store offset=20 (global.get $decision) (i32.const 10485760))))
  (global.get $decision))
